"""The report of a simulation in a real browser, from a file, without a service."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from service.simulation.report.page import render
from service.simulation.report.results import Results
from tests.browser.conftest import SHOTS
from tests.unit.service.simulation.made_up import result


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_charts_are_drawn_and_a_policy_can_be_hidden(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(Results(name="philly", runs=(result("goodput"), result("fifo", slow=2.0)))))
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    page.locator("canvas").nth(5).wait_for()
    assert page.locator("canvas").count() == 6
    before = page.locator("canvas").first.evaluate("one => one.toDataURL()")
    page.uncheck("[data-policy='1']")
    page.wait_for_function("before => document.querySelector('canvas').toDataURL() !== before", arg=before)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert errors == []
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"report-{scheme}.png", full_page=True)
    context.close()
