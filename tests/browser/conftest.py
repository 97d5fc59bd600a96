"""A real browser in front of a whole server. Whatever a page does wrong unasked fails the test."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    sync_playwright,
)

from tasks.keys import create_key, login_token
from tasks.tables import Role
from tests.live import LiveMill, live_mill

INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LONGEST_MS = 20_000

Enter = Callable[..., Page]
"""Opens a page that is logged in."""


def installed_browser() -> str | None:
    """The program of a Chromium on this machine; null leaves it to Playwright's own."""
    return next((found for name in INSTALLED if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMill]:
    with live_mill(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium has no sandbox of its own for root, as which containers run.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=installed_browser(), args=flags)
        yield launched
        launched.close()


@pytest.fixture
def enter(browser: Browser, mill: LiveMill) -> Iterator[Enter]:
    """Pages in contexts of their own; at the end, what went wrong in any of them."""
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def open_page(role: Role = Role.ADMIN, *, logged_in: bool = True, **context: object) -> Page:
        contexts.append(browser.new_context(**context))  # type: ignore[arg-type]
        page = contexts[-1].new_page()
        page.set_default_timeout(LONGEST_MS)
        _note_troubles(page, mill.url, troubles)
        if logged_in:
            key = create_key(mill.backends.database, tenant="local", name="browser", role=role).key
            page.goto(f"{mill.url}/login?token={login_token(mill.settings, key.id)}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _note_troubles(page: Page, url: str, troubles: list[str]) -> None:
    def dismiss(dialog: Dialog) -> None:
        troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def listen(said: ConsoleMessage) -> None:
        if "Content Security" in said.text:
            troubles.append(f"console: {said.text}")

    def look(sent: Request) -> None:
        if not sent.url.startswith((f"{url}/", "data:", "blob:")):
            troubles.append(f"asked {sent.url}")

    page.on("pageerror", lambda error: troubles.append(f"script error: {error}"))
    page.on("dialog", dismiss)
    page.on("console", listen)
    page.on("request", look)
