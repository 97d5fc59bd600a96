"""Takes the screenshots of the pages: `.venv/bin/python docs/screenshots.py`.

Starts a whole Gristmill with simulated engines, puts some work into it, and takes each page in light, in
dark, and at phone width.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import BrowserContext, Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tasks.keys import create_key, login_token  # noqa: E402
from tasks.tables import Role  # noqa: E402
from tests.browser.conftest import installed_browser  # noqa: E402
from tests.live import LiveMill, live_mill  # noqa: E402

TARGET = ROOT / "docs" / "screenshots"
LOOKS = {
    "light": {"viewport": {"width": 1080, "height": 720}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1080, "height": 720}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
TALL = {"job": 1500, "submit": 1680}
"""Pages that say little in one screen."""
TOPICS = ("tides", "bread ovens", "the post in Roman times", "solar cells", "beavers", "paper making")


def main() -> None:
    """Take them all."""
    TARGET.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, live_mill(Path(folder)) as mill, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_browser(), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1080, "height": 720})
        login(context, mill)
        paths = work(context.new_page(), mill)
        state = context.storage_state()
        for look, settings in LOOKS.items():
            with browser.new_context(storage_state=state, **settings) as photographed:  # type: ignore[arg-type]
                page = photographed.new_page()
                for name, path in paths.items():
                    if look != "phone":
                        page.set_viewport_size({"width": 1080, "height": TALL.get(name, 720)})
                    page.goto(f"{mill.url}{path}")
                    if name == "submit":
                        fill_in(page)
                    page.screenshot(path=TARGET / f"{name}-{look}.png")
            with browser.new_context(**settings) as stranger:  # type: ignore[arg-type]
                page = stranger.new_page()
                page.goto(f"{mill.url}/login")
                page.screenshot(path=TARGET / f"login-{look}.png")
        browser.close()


def login(context: BrowserContext, mill: LiveMill) -> None:
    """As an admin."""
    for name, role in (("nightly run", Role.SUBMIT), ("dashboard", Role.READ)):
        create_key(mill.backends.database, tenant="local", name=name, role=role)
    key = create_key(mill.backends.database, tenant="local", name="first key", role=Role.ADMIN).key
    context.new_page().goto(f"{mill.url}/login?token={login_token(mill.settings, key.id)}")


def work(page: Page, mill: LiveMill) -> dict[str, str]:
    """Some jobs, one of them running; the paths of the pages by name."""
    submit(page, mill, "reviews.jsonl", "fast", "Is this review kind? {{ text }}", 900)
    submit(page, mill, "tickets.csv", "fast", "Which team should get this? {{ text }}", 2_500)
    path = submit(page, mill, "articles.csv", "slow", "Summarise in one sentence: {{ text }}", 600)
    time.sleep(12)
    return {
        "submit": "/",
        "jobs": "/jobs",
        "job": path,
        "request": f"{path}/requests/4",
        "fleet": "/fleet",
        "models": "/models",
        "keys": "/keys",
    }


def submit(page: Page, mill: LiveMill, name: str, model: str, template: str, rows: int) -> str:
    """Start a job through the page; its path."""
    page.goto(mill.url)
    content = "\n".join(table(name, rows)).encode()
    page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})
    page.get_by_label("Template", exact=True).fill(template)
    page.get_by_label("Model", exact=True).select_option(model)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/jobs/batch_*")
    return page.url.removeprefix(mill.url)


def table(name: str, rows: int) -> Iterator[str]:
    """Lines of a CSV or JSON lines file with a column `text`."""
    dice = random.Random(name)  # noqa: S311 (texts, no secrets)
    if name.endswith(".csv"):
        yield "text"
    for number in range(rows):
        refused = " SIMULATE-ERROR" if dice.random() < 0.02 else ""
        text = f"Article {number + 1} is about {dice.choice(TOPICS)}{refused}."
        yield text if name.endswith(".csv") else json.dumps({"text": text})


def fill_in(page: Page) -> None:
    """A form as somebody leaves it just before the preview."""
    page.get_by_label("Prompts, one a line").fill("the tides\nbread ovens\nsolar cells")
    page.get_by_label("Template", exact=True).fill("Explain {{ prompt }} to a child in two sentences.")
    page.get_by_label("Longest answer, tokens").fill("80")
    page.get_by_role("button", name="Preview").click()


if __name__ == "__main__":
    main()
