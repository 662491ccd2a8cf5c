"""The documentation's site needs nobody else: any web server shows it, with every request to another host refused."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from tests.browser.conftest import PATIENCE_MS
from tools.pages import ROOT

LOOKED_AT = (
    "index",
    "quickstart",
    "lifecycle",
    "guides/convert",
    "reference/settings",
    "operations/troubleshooting",
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
        """Nothing of every request."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of these files."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_site_is_read_without_the_network(tmp_path: Path, browser: Browser) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    with served(tmp_path) as base:
        read_everything(browser, base)


def read_everything(browser: Browser, base: str) -> None:
    asked: list[str] = []
    broken: list[str] = []

    def only_ours(route: Route) -> None:
        if route.request.url.startswith((base, "data:")):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    context.route("**/*", only_ours)
    page = context.new_page()
    page.on("pageerror", lambda error: broken.append(str(error)))
    for name in LOOKED_AT:
        page.goto(f"{base}{name}.html")
        page.wait_for_load_state("networkidle")
        assert page.locator("article h1").count() == 1
        pictures = page.locator("article img").evaluate_all(
            "all => all.map(one => one.complete && one.naturalWidth > 0)"
        )
        assert all(pictures), name
        assert page.locator(".mermaid").count() == 0
    context.close()
    assert (asked, broken) == ([], [])
