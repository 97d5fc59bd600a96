// Keeps the parts of a page fresh that name where to get them, and helps with forms. Pages work without it.

const PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;

const FIELDS = "input, select, textarea";
const FOCUSABLE = "a[href], button, summary";

const ended = new WeakSet();
const voice = document.querySelector("[data-voice]");
let said = document.querySelector("[data-say]")?.dataset.say;

/** Replace the part with the server's, unless somebody is using it; false when no more will come. */
async function refresh(part) {
  const answer = await fetch(part.dataset.live, { headers: { "X-Live": "1" }, redirect: "error" });
  if (!answer.ok) throw new Error(String(answer.status));
  const fresh = document.createElement("template");
  fresh.innerHTML = await answer.text();
  if (isInUse(part)) return true;
  const open = new Set([...part.querySelectorAll("details[data-keep][open]")].map((kept) => kept.dataset.keep));
  const focused = part.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  part.replaceChildren(fresh.content);
  for (const kept of part.querySelectorAll("details[data-keep]")) kept.open = open.has(kept.dataset.keep);
  if (focused !== null) focusAgain(part, focused);
  say(part.querySelector("[data-say]")?.dataset.say);
  return !part.querySelector("[data-live-end]");
}

/** Text is selected, a button is held down, or a field has a value that would be lost. */
function isInUse(part) {
  const selection = document.getSelection();
  const isReading = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  const isFilling = part.contains(document.activeElement) && document.activeElement.matches(FIELDS);
  return isReading || isFilling || part.querySelector(":active") !== null;
}

function nameOf(element) {
  return `${element.tagName} ${element.getAttribute("href") ?? ""} ${element.textContent.trim()}`;
}

/** On the same thing as before; where it is gone, on the part, so that the place is not lost. */
function focusAgain(part, name) {
  const same = [...part.querySelectorAll(FOCUSABLE)].find((element) => nameOf(element) === name && !element.disabled);
  if (!same) part.tabIndex = -1;
  (same ?? part).focus({ preventScroll: true });
}

/** Tell those who cannot see it, once for each change. */
function say(text) {
  if (voice && text && text !== said) voice.textContent = said = text;
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
