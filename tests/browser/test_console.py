"""The pages in a real browser, over a whole Headway: what people do, without and with trouble."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES
from headway.contract.views.money import BudgetRequest, Period
from headway.local.stack import LocalStack
from tests.browser.conftest import PATIENCE_MS, Visit, Visitor

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def training(stack: LocalStack, browser: object, session: object) -> Iterator[None]:
    """A job that trains, submitted from the page by `test_submit_and_watch`, and one that waits, for all tests."""
    with stack.client() as client:
        spec = {"name": "too-big", "run": "python -V", "elastic": {"min": 64}}
        client.submit(JobSpec.model_validate(spec))
        yield
        for job in client.jobs(live=True):
            client.cancel(job.id, force=True)


def confirm(page: Page) -> None:
    page.locator("#confirm-yes").click()


def pixels(page: Page, chart: str) -> str:
    """Return the pixels of the first of these charts."""
    drawn: str = page.locator(f"{chart} canvas").first.evaluate("one => one.toDataURL()")
    return drawn


def submit_example(visitor: Visitor) -> None:
    page = visitor.page
    visitor.goto("/submit")
    page.get_by_role("button", name="Forecast", exact=True).click()
    expect(page.locator("#plan .lead")).to_contain_text("$")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("submitted")


def test_submit_watch_resize_and_read(training: None, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    submit_example(visitor)
    expect(page.locator("h1")).to_contain_text("first-steps")
    expect(page.locator("h1 .chip")).to_have_text("running")
    # The plot is drawn, and changes while the job trains, without the page being loaded again.
    page.evaluate("window.stayed = true")
    expect(page.locator(".panel canvas").first).to_be_visible()
    before = pixels(page, ".panel")
    page.wait_for_function(
        "before => document.querySelector('.panel canvas').toDataURL() !== before",
        arg=before,
    )
    expect(page.locator("#log")).to_contain_text("epoch")
    page.get_by_label("Attempt").fill("1")
    page.locator("#since").select_option("an hour ago")
    expect(page.locator("#log")).to_contain_text("rank 0, generation 1")
    expect(page.locator("#log-state")).to_have_text("following")
    visitor.shoot("job")
    page.get_by_label("Slots", exact=True).fill("2")
    page.get_by_role("button", name="Keep this size").click()
    expect(page.locator("#confirm-question")).to_contain_text("2 slots")
    assert page.evaluate("window.stayed")
    confirm(page)
    expect(page.locator(".notice")).to_contain_text("new size")
    expect(page.locator("#job-facts")).to_contain_text("2 of 1–4")
    expect(page.locator("#steps")).to_contain_text("grew from 1 to 2 slots")
    # The list of checkpoints comes once it is looked at.
    page.locator("#checkpoints").scroll_into_view_if_needed()
    expect(page.locator("#checkpoints")).to_contain_text(
        re.compile("would be restored|No checkpoint was saved")
    )
    # A sentence at the top gives the cost and the end.
    expect(page.locator(".costs")).to_contain_text(re.compile(r"\$0\.\d+ .*ending in about"))
    expect(page.locator(".why-now")).to_contain_text("first-steps")
    assert visitor.complaints == []


def test_read_a_log_with_characters_that_would_act_on_the_page(
    training: None, visit: Visit, stack: LocalStack
) -> None:
    """U+202E would turn the rest of the line around; letters outside of ASCII and tabs stay as they are."""
    said = "a\u202eb\u200bc\x1b[31md\U000e0041 é\té\n"
    spec = {
        "name": "acting",
        "run": f"python -c {shlex.quote(f'print({said!a})')}",
        "elastic": {"min": 1, "max": 1},
    }
    with stack.client() as client:
        job = client.submit(JobSpec.model_validate(spec))
    visitor = visit()
    visitor.goto(f"/jobs/{job.id}")
    log = visitor.page.locator("#log")
    expect(log).to_contain_text("a\\u202eb\\u200bc\\x1b[31md\\U000e0041 é\té")
    assert not set(log.inner_text()) & set("\u202e\u200b\x1b\U000e0041")
    assert visitor.complaints == []


def test_read_why_a_job_waits_and_what_it_would_cost(training: None, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/")
    expect(page.locator("#waiting")).to_contain_text("too-big")
    expect(page.locator("#waiting")).to_contain_text("needs at least 64 slots")
    visitor.shoot("cluster")
    page.locator("#waiting a").first.click()
    expect(page.locator(".why-now")).to_have_text(re.compile(r"too-big is pending: .*64 slots"))
    expect(page.locator(".costs")).to_contain_text("there is no forecast")
    # Sections about training are left out, as it never held slots.
    expect(page.locator("main h2:visible")).to_have_text(["Events"])
    assert visitor.complaints == []


PRESENT = """
bars => {
  const right = document.getElementById("history").getBoundingClientRect().right;
  for (const bar of document.querySelectorAll(bars)) {
    const box = bar.querySelector("rect.fill").getBoundingClientRect();
    if (box.left <= right - 8 && box.right > right) return {x: right - 4, y: box.top + box.height / 2};
  }
}
"""
"""Finds the middle of what is visible of a bar that lasts. It grows to the left, so the place stays on the bar."""


def point_at_present(page: Page, bars: str) -> None:
    """Move the pointer onto the first of these bars that lasts and is wide enough to be pointed at."""
    where = page.wait_for_function(PRESENT, arg=bars).json_value()
    page.mouse.move(where["x"], where["y"])


def test_see_who_held_which_slot(training: None, visit: Visit, stack: LocalStack) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/rounds")
    # A bar in the colour of its job moves with the clock, says what it is, and leads to its job.
    expect(page.locator("#history-lanes a svg.held.running").last).to_be_visible()
    moved = page.locator("#history-strip")
    before = moved.get_attribute("x")
    page.wait_for_function(
        "x => document.getElementById('history-strip').getAttribute('x') !== x", arg=before
    )
    point_at_present(page, "#history-lanes svg.held.running")
    tip = page.locator(".tip.long")
    expect(tip).to_contain_text("running, from")
    page.locator("summary >> text=As a table").first.click()
    expect(page.locator("#history-words tbody tr").first).to_contain_text(re.compile(r"local-\d \d"))
    # Another job appears by itself, in a colour that no running job has.
    page.evaluate("window.stayed = true")
    with stack.client() as client:
        spec = {"name": "newcomer", "run": "sleep 600", "elastic": {"min": 1, "max": 1, "resize": "never"}}
        job = client.submit(JobSpec.model_validate(spec))
        mine = f"#history-lanes a[href='/jobs/{job.id}']"
        expect(page.locator(mine).first).to_be_attached()
        hues = page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('#history-lanes a')]"
            ".map(a => [a.getAttribute('href'), a.querySelector('svg').classList[1]]))"
        )
        assert len(set(hues.values())) == len(hues)
        visitor.shoot("slots-over-time")
        # The tip follows the chart although the pointer rests.
        point_at_present(page, f"{mine} svg.held.running")
        expect(tip).to_contain_text(re.compile("newcomer.* until now"))
        client.cancel(job.id, force=True)
        expect(tip).to_be_hidden()
        assert page.evaluate("window.stayed")
        page.get_by_role("link", name="1 hour").click()
        expect(page.locator("nav a[aria-current=page] >> text=1 hour")).to_be_visible()
    assert visitor.complaints == []


def test_drain_a_node_and_take_it_back(training: None, visit: Visit, stack: LocalStack) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/nodes/local-2")
    page.get_by_role("button", name="Drain").click()
    # By keyboard: the safe answer has the focus, and the other one is next.
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("move away")
    expect(page.locator("h1 .chip")).to_have_text(re.compile("drain"))
    expect(page.locator("h1 .chip")).to_have_text("drained")
    page.get_by_role("button", name="Uncordon").click()
    confirm(page)
    expect(page.locator("h1 .chip")).to_have_text("ready")
    with stack.client() as client:
        assert {node.name: node.state for node in client.nodes()}["local-2"] is NodeState.READY
    assert visitor.complaints == []


def test_the_network_breaks_and_comes_back(training: None, visit: Visit, stack: LocalStack) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/jobs")
    page.evaluate("window.stayed = true")
    visitor.context.set_offline(True)
    expect(page.locator("#stale")).to_contain_text(re.compile(r"What you see is from \d+:\d+:\d+"))
    expect(page.locator("#live")).to_have_text("not live")
    visitor.shoot("offline")
    with stack.client() as client:
        spec = {"name": "meanwhile", "run": "python -V", "elastic": {"min": 64}}
        job = client.submit(JobSpec.model_validate(spec))
        visitor.context.set_offline(False)
        expect(page.locator("#rows")).to_contain_text("meanwhile")
        expect(page.locator("#stale")).to_be_hidden()
        client.cancel(job.id)
        expect(page.locator("#rows")).not_to_contain_text("meanwhile")
    assert page.evaluate("window.stayed")


def test_everything_works_without_scripts(training: None, visit: Visit, stack: LocalStack) -> None:
    visitor = visit(scripts=False)
    page = visitor.page
    with stack.client() as client:
        spec = {"name": "plain", "run": "python -V", "elastic": {"min": 64}}
        job = client.submit(JobSpec.model_validate(spec))
        link = page.get_by_role("link", name="plain", exact=True)
        page.goto(f"{stack.url}/jobs")
        for _ in range(20):  # a list is a moment old, and nothing brings it up to date here
            if link.count():
                break
            page.reload()
        link.click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("h1")).to_contain_text("Cancel plain?")
        page.get_by_role("button", name="Yes, cancel").click()
        expect(page.locator(".notice")).to_contain_text("cancelled")
        assert client.job(job.id).state in TERMINAL_STATES


def test_ask_what_if(training: None, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/simulations")
    page.get_by_label("Nodes").fill("3")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("h1")).to_contain_text("What if the cluster gained 3 cpu nodes?")
    expect(page.locator("h1 .chip")).to_have_text("done")
    expect(page.locator("#outcomes tbody tr")).to_have_count(2)
    assert visitor.complaints == []


def test_pages_are_accessible_and_fit_in_light_and_dark_and_at_both_widths(
    training: None, visit: Visit, stack: LocalStack
) -> None:
    visitor = visit()
    with stack.client() as client:
        jobs = {job.name: job.id for job in client.jobs()}
        client.set_budget("monthly", BudgetRequest(usd=500, period=Period.MONTH))
    paths = {
        "cluster": "/",
        "jobs": "/jobs?state=all",
        "job": f"/jobs/{jobs.get('first-steps', jobs['too-big'])}",
        "node": "/nodes/local-1",
        "rounds": "/rounds",
        "money": "/money",
        "simulations": "/simulations",
        "submit": "/submit",
        "error": "/jobs/no-such-job",
        "sign-in": "/auth/login",
        "help": "/help",
    }
    wrong: list[str] = []
    for name, path in paths.items():
        visitor.goto(path)
        visitor.page.evaluate(AXE)
        for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 390), ("light", 390)):
            visitor.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            visitor.page.set_viewport_size({"width": width, "height": 900})
            wrong += [f"{name}, {scheme}, {width}: {one}" for one in problems_of(visitor.page)]
            visitor.shoot(f"{name}-{scheme}-{width}")
        if name == "money":
            visitor.page.get_by_text("As a table").click()
            expect(visitor.page.locator("#budgets td").last).to_contain_text("$")
            expect(visitor.page.locator("#budgets canvas")).to_be_visible()
    assert not wrong, "\n".join(wrong)


def problems_of(page: Page) -> list[str]:
    """Return the problems that axe finds on the page, and one if the page is wider than its window."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", tags)
    problems = [
        f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0].get('failureSummary', '')[:200]}"
        for one in found["violations"]
    ]
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return problems + ([f"it is {overflow} px too wide"] if overflow > 0 else [])
