"""One whole Headway and one real browser for all tests of the pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from headway.local.stack import LocalStack

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 90_000
SHOTS = Path(os.environ.get("HEADWAY_SCREENSHOTS", "build/screenshots"))
"""Kept by continuous integration."""


@dataclass
class Visitor:
    """Somebody with a browser, signed in. `complaints` are what the browser found wrong with our pages."""

    base: str
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def goto(self, path: str) -> None:
        """Open a page, and wait until it is live if it ever is."""
        self.page.goto(f"{self.base}{path}")
        if self.page.locator("body[data-stream]").count():
            self.page.wait_for_selector("#live:not(.away) >> text=/^live$/")

    def shoot(self, name: str) -> None:
        """Keep what is seen."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Two nodes with two slots each, which have a price."""
    with LocalStack(tmp_path_factory.mktemp("pages"), agents=2, slots=2, prices="cpu=0.12") as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("NO BROWSER: THE PAGES ARE NOT TESTED HERE. Install it (Debian: apt install chromium).")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def session(stack: LocalStack, browser: Browser) -> list[dict[str, object]]:
    """The cookies of somebody who has signed in with the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{stack.url}/jobs?state=all")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in with a token").click()
    page.wait_for_selector("[role=alert]")
    page.get_by_label("Token").fill(stack.token)
    page.get_by_role("button", name="Sign in with a token").click()
    page.wait_for_selector("h1 >> text=Jobs")
    cookies = context.cookies()
    context.close()
    return [dict(one) for one in cookies]


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(stack: LocalStack, browser: Browser, session: list[dict[str, object]]) -> Iterator[Visit]:
    """Opens browsers: of a width, light or dark, with scripts or without."""
    visitors: list[Visitor] = []

    def opened(*, width: int = 1280, scheme: str = "light", scripts: bool = True) -> Visitor:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        context.add_cookies(session)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        visitor = Visitor(stack.url, context, context.new_page())

        def heard(message: ConsoleMessage) -> None:
            if message.type == "error":
                visitor.complaints.append(message.text)

        visitor.page.on("console", heard)
        visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        visitors.append(visitor)
        return visitor

    yield opened
    for visitor in visitors:
        visitor.context.close()
