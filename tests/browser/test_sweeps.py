"""The page of a sweep in a real browser: lines to jobs, an order, live rows, a group request, and both widths."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from headway.contract.views.jobs import JobState
from headway.local.stack import LocalStack
from tests.browser.conftest import PATIENCE_MS, SHOTS, Visit
from tests.browser.test_console import AXE, confirm, problems_of

expect.set_options(timeout=PATIENCE_MS)
SWEEP = {
    "name": "widths",
    "run": 'echo "step 1 loss 0.$HEADWAY_PARAM_HIDDEN_WIDTH_OF_THE_DECODER"\n'
    'if [ "$HEADWAY_PARAM_OPTIMISER" = adamw ]; then sleep 600; fi\n',
    "elastic": {"min": 1, "max": 1, "resize": "never"},
    "progress": {"regex": r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"},
    "sweep": {
        "parameters": {"hidden_width_of_the_decoder": [64, 16, 32], "optimiser": ["sgd", "adamw"]},
        "metric": "loss",
    },
}
"""Three of six trials end, and three go on until they are cancelled. The best one is the second of those that end."""
LABELS_THAT_ARE_CUT = """
() => {
  const picture = document.getElementById("parallel").getBoundingClientRect();
  const labels = [...document.querySelectorAll("#parallel text")];
  const boxes = labels.map(label => label.getBoundingClientRect());
  const cut = labels.filter((_, at) => boxes[at].left < picture.left || boxes[at].right > picture.right
    || boxes[at].top < picture.top || boxes[at].bottom > picture.bottom);
  const names = [...document.querySelectorAll("#parallel .name")].map(one => one.getBoundingClientRect());
  const touching = names.filter((box, at) => at + 1 < names.length && box.right > names[at + 1].left);
  return [...cut.map(one => one.textContent), ...touching.map(() => "names touch")];
}
"""


@pytest.fixture(scope="module")
def sweep_id(stack: LocalStack, browser: object, session: object) -> Iterator[str]:
    """A sweep of six trials, cancelled at the end."""
    with stack.client() as client:
        view = client.submit_sweep(SWEEP)
        yield view.id
        client.cancel_sweep(view.id, force=True)


def test_sweep_is_found_compared_and_changed_on_its_page(
    sweep_id: str, visit: Visit, stack: LocalStack
) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/sweeps")
    page.get_by_role("link", name="widths", exact=True).click()
    expect(page.locator("h1")).to_have_text("widths")
    page.evaluate("window.stayed = true")
    # Live: trials end, and the best one is known, without the page being loaded again.
    expect(page.locator(".lead")).to_contain_text("6 trials, 3 ended.")
    expect(page.locator(".lead")).to_contain_text(
        "Best: widths-3, loss 0.16 with hidden_width_of_the_decoder 16 and optimiser sgd."
    )
    expect(page.locator("#parallel-best circle")).to_have_count(3)
    expect(page.locator("#parallel-lines > g").last).to_have_id("line-3")
    expect(page.locator("[data-chart=data-best] canvas")).to_be_visible()
    expect(page.locator("#words-best")).to_contain_text("After 3 ended trials the best loss is 0.16.")
    assert page.evaluate("window.stayed")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 1400})
        assert page.evaluate(LABELS_THAT_ARE_CUT) == []
        navigation = page.locator("nav[aria-label=Pages]")
        assert navigation.evaluate("one => one.scrollWidth <= one.clientWidth"), "a page's name is cut"
        visitor.shoot(f"sweep-{width}")
    page.set_viewport_size({"width": 1280, "height": 900})
    # The header sorts, by a link that works without scripts too.
    page.get_by_role("link", name="best loss").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("best loss")
    expect(page.locator("#trials tr").first).to_contain_text("widths-3")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download as CSV").click()
    assert started.value.suggested_filename == "widths.csv"
    assert started.value.path().read_text(encoding="utf-8").count("\n") == 7
    # The group is changed after a question; the trials that have ended stay as they are.
    page.get_by_label("Priority").fill("80")
    page.get_by_role("button", name="Set priority").click()
    expect(page.locator("#confirm-question")).to_contain_text("The priority is to be 80.")
    confirm(page)
    expect(page.locator(".notice")).to_contain_text("new priority")
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert "danger" in (page.locator("#confirm-yes").get_attribute("class") or "").split()
    confirm(page)
    expect(page.locator(".head")).to_contain_text(re.compile("3 succeeded.*3 cancelled"))
    with stack.client() as client:
        view = client.sweep(sweep_id)
        assert view.states == {JobState.SUCCEEDED: 3, JobState.CANCELLED: 3}
        assert client.job(view.trials[1].job_id).spec.priority == 80
    # A line leads to the job of its trial, and the job leads back.
    page.locator("#line-3 a").dispatch_event("click")
    expect(page.locator("h1")).to_contain_text("widths-3")
    expect(page.locator("#job-parameters")).to_contain_text("optimisersgd")
    visitor.shoot("trial")
    page.get_by_role("link", name="widths", exact=True).click()
    expect(page.locator("h1")).to_have_text("widths")
    assert visitor.complaints == []


def test_pages_of_sweeps_are_accessible_in_light_and_dark_and_at_both_widths(
    sweep_id: str, visit: Visit
) -> None:
    visitor = visit()
    wrong: list[str] = []
    for name, path in {"sweeps": "/sweeps", "sweep": f"/sweeps/{sweep_id}"}.items():
        visitor.goto(path)
        visitor.page.evaluate(AXE)
        for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 390), ("light", 390)):
            visitor.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            visitor.page.set_viewport_size({"width": width, "height": 900})
            wrong += [f"{name}, {scheme}, {width}: {one}" for one in problems_of(visitor.page)]
            visitor.page.screenshot(path=SHOTS / f"{name}-{scheme}-{width}.png", full_page=True)
    assert not wrong, "\n".join(wrong)
    assert visitor.complaints == []
