"""Pages at both widths show charts in full, tables with a hint that they go on, and every link of the header."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from headway.contract.spec import JobSpec
from headway.local.stack import LocalStack
from tests.browser.conftest import PATIENCE_MS, Visit

SCRIPT = """
import time, torch, headway
from torch.utils.data import TensorDataset

run = headway.init()
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
loader = run.loader(TensorDataset(torch.randn(4096, 4)), global_batch=16)
for epoch in run.epochs(10_000):
    for (inputs,) in loader:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        names = ["loss", "validation_generalisation_loss", "distillation_from_teacher_loss", "contrastive_loss"]
        run.report(grad_norm=1.0, **dict.fromkeys(names, loss.item()))
        time.sleep(0.05)
"""
LEGEND_BELOW_ITS_BOX = """
() => [...document.querySelectorAll(".chart")].filter(box => {
  const legend = box.querySelector(".u-legend");
  return legend && legend.getBoundingClientRect().bottom > box.getBoundingClientRect().bottom;
}).map(box => box.dataset.chart)
"""
LABELS_THAT_ARE_CUT = """
() => {
  const picture = document.getElementById("history").getBoundingClientRect();
  return [...document.querySelectorAll("#history-axis text")].filter(label => {
    const box = label.getBoundingClientRect();
    const cut = box.left < picture.left || box.right > picture.right;
    return cut && getComputedStyle(label).visibility !== "hidden";
  }).map(label => label.textContent);
}
"""


@pytest.fixture(scope="module")
def job_id(stack: LocalStack, browser: object, session: object) -> Iterator[str]:
    """A job that reports metrics with long names."""
    spec = {
        "name": "long-names",
        "run": f"python -c '{SCRIPT}'",
        "elastic": {"min": 1, "max": 1, "resize": "never"},
    }
    with stack.client() as client:
        job = client.submit(JobSpec.model_validate(spec))
        yield job.id
        client.cancel(job.id, force=True)


def test_chart_legend_that_wraps_stays_in_its_box_and_losses_come_first(job_id: str, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto(f"/jobs/{job_id}")
    expect(page.locator("#learning .u-legend").nth(1)).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("#learning h3").first).to_contain_text("loss, ")
    expect(page.locator("#learning h3").last).to_have_text("grad_norm")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(LEGEND_BELOW_ITS_BOX) == []
        visitor.shoot(f"legends-{width}")
    expect(page.locator("[data-chart=data-sizes] .u-legend")).to_contain_text("time, UTC")
    assert visitor.complaints == []


def test_slots_over_time_names_its_zone_and_cuts_no_label(job_id: str, visit: Visit) -> None:
    visitor = visit(width=390)
    page = visitor.page
    for window in ("15m", "1h", "6h", "24h"):
        visitor.goto(f"/rounds?window={window}")
        page.wait_for_function("() => document.querySelector('#history-zone').textContent.startsWith('UTC')")
        page.wait_for_function(f"() => ({LABELS_THAT_ARE_CUT.strip()})().length === 0")
    assert visitor.complaints == []


def test_phone_has_help_and_api_and_shades_the_side_of_a_table_that_goes_on(
    job_id: str, visit: Visit
) -> None:
    visitor = visit(width=390)
    page = visitor.page
    visitor.goto("/money")
    for name in ("Help", "API", "Submit"):
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    header = page.locator("header.bar").bounding_box()
    assert header is not None
    assert header["height"] < 100, "the header takes more than two rows"
    visitor.goto("/jobs")
    table = page.locator(".scroll:has(table)").filter(visible=True).first
    expect(table).to_be_visible()
    assert "scroll" in table.evaluate("one => getComputedStyle(one).backgroundAttachment")
    assert visitor.complaints == []


def test_square_of_a_slot_has_the_letters_and_the_colour_of_its_job(job_id: str, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto("/")
    cell = page.locator(".cells i[data-mark=ls]").first
    dot = page.locator("#working .dot[data-mark=ls]").first
    expect(cell).to_be_visible()
    expect(dot).to_be_visible()
    colours = [one.evaluate("one => getComputedStyle(one).color") for one in (cell, dot)]
    visitor.goto("/jobs")
    listed = page.locator(f"#job-{job_id} .dot")
    colours.append(listed.evaluate("one => getComputedStyle(one).color"))
    assert len(set(colours)) == 1
    assert visitor.complaints == []


def test_confirmation_of_a_cancel_is_red_and_of_a_pause_is_not(job_id: str, visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    visitor.goto(f"/jobs/{job_id}")
    for name, danger in (("Cancel", True), ("Pause", False)):
        page.get_by_role("button", name=name, exact=True).click()
        classes = page.locator("#confirm-yes").get_attribute("class") or ""
        assert ("danger" in classes.split()) is danger
        page.get_by_role("button", name="No, go back").click()
    assert visitor.complaints == []


TIMES_TOLD = """
async () => {
  const script = document.querySelector("script[type=module]").src;
  const { relative } = await import(new URL("times.js", script));
  const told = document.createElement("p");
  for (const seconds of [-330, -2, 2, 330]) {
    const time = document.createElement("time");
    time.dateTime = new Date(Date.now() - 1000 * seconds).toISOString();
    told.append(time);
  }
  relative(told);
  return [...told.children].map(time => time.textContent);
}
"""


def test_times_to_come_are_told_apart_from_past_ones(visit: Visit) -> None:
    visitor = visit()
    visitor.goto("/jobs")
    assert visitor.page.evaluate(TIMES_TOLD) == ["in 5 min", "soon", "just now", "5 min ago"]
