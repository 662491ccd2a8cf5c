"""The page of `headway explain`: notes below the table, units, and what is not known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from headway.cli.render import decisions as render
from headway.contract.views.decisions import Outlook
from headway.contract.views.forecasts import Mark
from headway.contract.views.jobs import JobState
from tests.unit.headway.cli.verbs.jobs.test_decisions import (
    configuration,
    explained,
    forecast_of,
    option,
    plan_of,
    rows,
)
from tests.unit.headway.cli.verbs.jobs.test_jobs import text
from tests.unit.headway.stub import NOW


def test_speedups_without_a_measurement_on_one_slot_are_dashes_and_say_what_is_missing():
    unknown = option(note="current").model_copy(update={"measured": True, "one_slot_measured": False})
    shown = text(render.explain_page(explained(options=[unknown]), NOW))
    assert ["4", "cpu", "1", "-", "-", "measured", "0.500", "current"] in rows(shown)
    assert "nothing was measured on one slot yet" in shown
    sizes = [configuration(4, one_slot_measured=False, marks=[Mark.FASTEST])]
    for page_ in (render.forecast_page(forecast_of(*sizes)), render.plan_page(plan_of(*sizes))):
        assert "4.00" not in text(page_)
        assert "nothing was measured on one slot yet" in text(page_)
    assert "one slot" not in text(render.plan_page(plan_of(configuration(1))))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_long_notes_stand_below_the_table_of_explain_whose_columns_keep_their_width(width: int):
    note = "the job is not known to resume after a restart; say `resumes: true` in its job file if it does"
    sizes = [option(1, note="current"), *(option(slots, utility=None, note=note) for slots in (2, 3, 4))]
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(render.explain_page(explained(options=sizes), NOW))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert ["1", "cpu", "1", "-", "3.20", "predicted", "0.500", "current"] in rows(shown)
    assert ["4", "cpu", "1", "-", "3.20", "predicted", "-"] in rows(shown)
    assert f"2-4 cpu: {note}" in " ".join(shown.split())


def test_long_notes_stand_below_the_table_of_a_forecast():
    sizes = [configuration(slots, why_not_now="all a100 slots are in use") for slots in (1, 2, 4)]
    for page_ in (render.forecast_page(forecast_of(*sizes)), render.plan_page(plan_of(*sizes))):
        assert "1-2,4 a100: all a100 slots are in use" in text(page_)


def shown_at(width: int, page_: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(page_)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("usd_per_h", [0.0, 2.0])
@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_sizes_keep_their_figures_at_any_width(width: int, usd_per_h: float):
    large = {"cost_usd": 1234.5, "cost_p90_usd": 2345.6, "global_batch": 65_536, "usd_per_h": usd_per_h}
    sizes = [
        configuration(1, marks=[Mark.SMALLEST, Mark.FRONT], **large),
        configuration(8, device_kind="nvidia-a100-sxm4-80gb", marks=[Mark.PRESENT, Mark.KNEE], **large),
    ]
    for page_ in (render.forecast_page(forecast_of(*sizes)), render.plan_page(plan_of(*sizes))):
        shown = shown_at(width, page_)
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width
        (row,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["8"] and "high" in line)
        money = ["$1,234.50"] if usd_per_h else []
        for figure in ("nvidia-a100-sxm4-80gb", "800", "7m30s", "8m20s", *money):
            assert figure in row, (width, row)
        assert "present; knee" in shown
        assert ("no room for 80 % IN" in shown) == ("720-880" not in shown)


def test_a_waiting_job_is_not_as_fast_as_now():
    """It has no speed now, so another slot has nothing to be compared with."""
    slot = Outlook(
        row="slots/cpu",
        device_kind="cpu",
        slots=1,
        goodput_samples_per_s=99,
        speedup=1.0,
        gain=None,
        price=0,
    )
    waits = explained(state=JobState.PENDING, action="wait", size=0, options=[option(1)], outlook=[slot])
    shown = text(render.explain_page(waits, NOW))
    assert "as fast as now" not in shown
    assert "with one more slot of cpu it could run on 1 cpu: goodput 99 samples/s" in shown
    paused = waits.model_copy(update={"state": JobState.PAUSED})
    assert "one more slot" not in text(render.explain_page(paused, NOW))


def test_goodput_of_a_job_of_steps_is_in_steps():
    shown = text(render.explain_page(explained(progress_unit="steps"), NOW))
    assert "goodput in steps per second" in shown
    assert "samples" not in shown


@pytest.mark.parametrize(
    ("state", "action", "applies"),
    [
        (JobState.RUNNING, "keep", True),
        (JobState.RUNNING, "wait", False),
        (JobState.PENDING, "wait", True),
        (JobState.PENDING, "keep", False),
        (JobState.PAUSED, "keep", False),
        (JobState.SUCCEEDED, "keep", False),
    ],
)
def test_the_action_of_a_decision_is_shown_only_while_it_applies(state: JobState, action: str, applies: bool):
    shown = text(render.explain_page(explained(state=state, action=action, message="why"), NOW))
    assert (f"{action}: why" in shown) is applies
