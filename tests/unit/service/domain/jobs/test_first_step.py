"""The time between the start of a job's ranks and their first step."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.run_facts import ProgressSource
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.jobs.first_step import SILENT_S, STEP_WITHIN_S, awaits_first_step, is_before_first_step
from tests.unit.service.builders import LIVE_STATES, NOW, job_of, spec_of

LIBRARY, SCRIPT = (JobProgress(source=one) for one in ProgressSource)


def awaits(age_s: float = 5.0, **fields: Any) -> bool:
    return awaits_first_step(job_of("j", JobState.RUNNING, age_s=age_s, **{"generation": 2, **fields}), NOW)


def test_a_started_job_awaits_its_first_step() -> None:
    assert awaits()
    assert awaits(progress=JobProgress(begun_generation=1)), "only the previous generation made a step"
    assert not awaits(progress=JobProgress(begun_generation=2))
    assert not awaits(live=True)


@pytest.mark.parametrize("resize", ["restart", "never"])
def test_a_job_that_never_changes_in_place_is_not_waited_for(resize: str) -> None:
    assert not awaits(spec=spec_of("j", elastic={"resize": resize}))
    assert not awaits(progress=SCRIPT)


def test_the_wait_is_longer_for_a_script_that_uses_the_library() -> None:
    assert awaits(SILENT_S - 1)
    assert not awaits(SILENT_S)
    assert awaits(STEP_WITHIN_S - 1, progress=LIBRARY)
    assert not awaits(STEP_WITHIN_S, progress=LIBRARY)
    assert not awaits(-STEP_WITHIN_S, progress=LIBRARY), "the clock was set back"


@pytest.mark.parametrize("state", LIVE_STATES)
def test_starting_and_running_jobs_are_before_their_first_step(state: JobState) -> None:
    job = job_of("j", state, generation=1)
    assert is_before_first_step(job) is (state in {JobState.STARTING, JobState.RUNNING})
