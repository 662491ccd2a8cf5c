"""Processes that outlive their script."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.runtime import Lingers
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import Ending, EndVerdict, RankExit
from service.domain.jobs.status import standing
from service.domain.life.life import Life
from service.domain.life.lingering import script_ended, with_ended_script, with_lingering
from tests.unit.service.domain.life.scenes import TWO, event_of, kinds, life_of, training

STOPPED = EndVerdict(Ending.STOPPED, Reason.PREEMPTED, "stopped")


def said(
    *, ended_s: float = 5.0, over: bool = False, code: int = 0, waits_for: str = "thread uploader"
) -> Lingers:
    return Lingers(
        rank=0, generation=1, at_s=0.0, ended_s=ended_s, within_s=600.0, exit_code=code, waits_for=(waits_for,), over=over
    )  # fmt: skip


def trains() -> Life:
    life = life_of(training(TWO))
    return replace(life, now=life.job.submitted_at + timedelta(hours=1))


def note(life: Life, after_s: float) -> str:
    job = life.job
    return standing(job.progress, job.state, job.generation, life.now + timedelta(seconds=after_s))


def ended(rank: int, *, code: int | None = None, completed: bool = False) -> RankExit:
    number = 15 if code is None else None
    return RankExit(
        rank=rank, exit_code=code, signal=number, stopped_by_agent=code is None, completed=completed
    )


def test_lingering_thread_is_named_with_its_time_and_bound() -> None:
    life = script_ended(trains(), (1, 0), said())
    assert kinds(life) == ["lingers"]
    assert event_of(life, "lingers").data["waits_for"] == ["thread uploader"]
    assert (
        note(life, 37.0) == "training ended 42s ago; waits for thread uploader, at most 10m00s (exit_within)"
    )


def test_repeated_report_adds_no_event_and_keeps_the_time() -> None:
    life = script_ended(trains(), (1, 0), said()).settled()
    later = script_ended(replace(life, now=life.now + timedelta(seconds=30)), (1, 0), said(ended_s=35.5))
    assert kinds(later) == []
    other = script_ended(life, (1, 0), said(waits_for="thread logger"))
    assert kinds(other) == []
    assert "logger" in note(other, 0.0)


def test_process_that_was_ended_is_an_event_and_in_the_last_message() -> None:
    life = script_ended(trains(), (1, 0), said()).settled()
    life = script_ended(life, (1, 0), said(ended_s=600.0, over=True))
    assert kinds(life) == ["lingering_ended"]
    message = with_lingering("every rank finished", life.job)
    assert {"rank", "0", "thread", "uploader", "(exit_within),"} <= set(message.split())
    assert with_lingering("every rank finished", trains().job) == "every rank finished"


def test_lingering_job_that_does_not_run_stays_unchanged() -> None:
    life = trains()
    stops = replace(life, job=replace(life.job, state=JobState.CANCELLING))
    assert script_ended(stops, (1, 0), said()) == stops


def test_stop_of_a_job_whose_scripts_had_ended_is_its_success() -> None:
    job = script_ended(trains(), (1, 0), said()).job
    verdict = with_ended_script(STOPPED, job, [ended(0), ended(1, code=0)])
    assert (verdict.ending, verdict.reason) == (Ending.DONE, Reason.COMPLETED)


@pytest.mark.parametrize(
    ("code", "other"),
    [(1, ended(1, code=0)), (0, ended(1)), (0, ended(1, code=1))],
    ids=["failed", "runs", "fails"],
)
def test_stop_of_a_job_with_a_script_that_had_not_ended_well_is_a_stop(code: int, other: RankExit) -> None:
    job = script_ended(trains(), (1, 0), said(code=code)).job
    assert with_ended_script(STOPPED, job, [ended(0), other]) == STOPPED


def test_verdict_without_a_report_stays_unchanged() -> None:
    assert with_ended_script(STOPPED, trains().job, [ended(0)]) == STOPPED
