"""Notes at a job whose ranks wait for each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.runtime import Progress, StandsStill
from headway.contract.views.jobs import JobState
from service.domain.jobs.progress import after_message
from service.domain.jobs.status import standing
from service.domain.life.life import Life
from service.domain.life.standstill import stands_still
from tests.unit.service.domain.life.scenes import FOUR, event_of, kinds, life_of, training

TO_N1 = ("n1.example",)
STEP = Progress(
    rank=0, generation=1, at_s=0, epoch=0, samples=12, total_samples=None, steps=1, step_s_sum=0.3,
    step_s_squares=0.09, global_batch=12, local_batch=6, accumulation=1,
)  # fmt: skip


def said(
    unanswered: tuple[str, ...] = (), *, silent_s: float = 15.0, over: bool = False, generation: int = 1
) -> StandsStill:
    return StandsStill(
        rank=0,
        generation=generation,
        at_s=0.0,
        silent_s=silent_s,
        usual_s=0.3,
        unanswered=unanswered,
        over=over,
    )


def trains() -> Life:
    life = life_of(training(FOUR))
    return replace(life, now=life.job.submitted_at + timedelta(hours=1))


def note(life: Life, after_s: float) -> str:
    job = life.job
    return standing(job.progress, job.state, job.generation, life.now + timedelta(seconds=after_s))


def test_a_job_stands_still_from_its_last_step_until_its_next() -> None:
    life = stands_still(trains(), "n0", said(TO_N1))
    assert kinds(life) == ["standstill"]
    assert event_of(life, "standstill").data == {
        "silent_s": 15.0,
        "usual_s": 0.3,
        "unanswered": [("node-n0", "node-n1")],
    }
    assert {"42s,", "0.3", "node-n0", "node-n1"} <= set(note(life, 27.0).replace(";", "").split())
    life = stands_still(life.settled(), "n0", said(over=True, silent_s=60.0))
    assert event_of(life, "standstill_ended").data == {"silent_s": 60.0, "usual_s": 0.3}
    assert note(life, 60.0) == ""
    assert kinds(stands_still(life.settled(), "n1", said(over=True))) == []


def test_hosts_are_named_once_they_are_known() -> None:
    life = stands_still(trains(), "n0", said()).settled()
    assert "node" not in note(life, 0.0)
    assert kinds(stands_still(life, "n0", said())) == []
    life = stands_still(life, "n1", said(("n0.example", "10.9.9.9")))
    assert kinds(life) == ["standstill"]
    further = stands_still(life.settled(), "n0", said(TO_N1))
    assert kinds(further) == []
    found = further.job.progress.standstill
    assert found is not None
    assert found.unanswered == [
        ("node-n0", "node-n1"),
        ("node-n1", "10.9.9.9"),
        ("node-n1", "node-n0"),
    ]


@pytest.mark.parametrize("state", [JobState.RECOVERING, JobState.PAUSED, JobState.CANCELLING])
def test_a_job_that_does_not_train_stands_not(state: JobState) -> None:
    life = trains()
    life = life.with_job(replace(life.job, state=state))
    assert stands_still(life, "n0", said(TO_N1)) == life


def test_a_reported_step_and_a_later_generation_end_the_note() -> None:
    life = stands_still(trains(), "n0", said(TO_N1)).settled()
    stepped = after_message(life.job.progress, STEP)
    assert stepped.standstill is None
    assert after_message(life.job.progress, replace(STEP, steps=0)).standstill is not None
    later = life.with_job(replace(life.job, generation=2))
    assert note(later, 0.0) == ""
    assert kinds(stands_still(later, "n0", said(generation=2))) == ["standstill"]


def test_a_script_that_writes_nonsense_does_no_harm() -> None:
    many = tuple(f"10.0.{at >> 8}.{at & 255}" for at in range(1000))
    life = stands_still(trains(), "n0", said(many, silent_s=2e11))
    found = life.job.progress.standstill
    assert found is not None
    assert (found.since, len(found.unanswered)) == (life.job.submitted_at, 64)
