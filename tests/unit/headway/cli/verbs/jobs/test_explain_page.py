"""The page of `headway explain`: notes below the table, units, and what is not known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

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
