// Keeps the parts of a page fresh that name where to get them, and helps with forms. Pages work without it.

const PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;

const ended = new WeakSet();

/** Replace the part with the server's, unless somebody is using it; false when no more will come. */
async function refresh(part) {
  const answer = await fetch(part.dataset.live, { headers: { "X-Live": "1" }, redirect: "error" });
  if (!answer.ok) throw new Error(String(answer.status));
  const fresh = document.createElement("template");
  fresh.innerHTML = await answer.text();
  const selection = document.getSelection();
  const isReading = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  if (!part.contains(document.activeElement) && !isReading) {
    const open = new Set([...part.querySelectorAll("details[data-keep][open]")].map((kept) => kept.dataset.keep));
    part.replaceChildren(fresh.content);
    for (const kept of part.querySelectorAll("details[data-keep]")) kept.open = open.has(kept.dataset.keep);
    return !part.querySelector("[data-live-end]");
  }
  return !fresh.content.querySelector("[data-live-end]") || part.contains(document.activeElement) || isReading;
}

async function keepFresh(part) {
  let pause = PAUSE_MS;
  while (part.isConnected && !ended.has(part)) {
    await new Promise((done) => setTimeout(done, pause));
    if (document.hidden || ended.has(part)) continue;
    try {
      if (!(await refresh(part))) return endOfJob();
      pause = PAUSE_MS;
    } catch {
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }
}

/** The job has ended: every part is fetched once more, and then no longer. */
function endOfJob() {
  for (const part of document.querySelectorAll("[data-live]")) {
    refresh(part).catch(() => {});
    ended.add(part);
  }
}

for (const part of document.querySelectorAll("[data-live]")) {
  if (!part.querySelector("[data-live-end]")) keepFresh(part);
}

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

for (const zone of document.querySelectorAll("[data-drop]")) {
  const input = zone.querySelector("input[type=file]");
  for (const kind of ["dragover", "dragenter"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) input.files = event.dataTransfer.files;
  });
}
