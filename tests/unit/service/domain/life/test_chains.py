"""Steps of a job that waits for the end of others."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.after import Predecessor
from service.domain.life import requests
from service.domain.life.chains import after_end, files_missing, release
from service.domain.life.ends import Aftermath
from service.domain.life.life import Life
from tests.unit.service.domain.life.scenes import event_of, kinds, life_of, waiting


def held(state: JobState = JobState.PENDING) -> Life:
    life = life_of(waiting())
    return life.with_job(replace(life.job, waits=True, state=state, message="waits for the success of prep"))


def prep(ended: JobState | None, on: AfterEnd = AfterEnd.SUCCEEDED) -> list[Predecessor]:
    reason = None if ended is None else Reason.USER_ERROR
    return [Predecessor(id="j1", key="prep", name="prep", on=on, ended=ended, reason=reason)]


def test_job_is_released_once_its_predecessor_ended_as_wanted() -> None:
    life, ready = after_end(held(), prep(JobState.SUCCEEDED))
    assert ready
    assert life.job.waits
    life = release(life, prep(JobState.SUCCEEDED))
    assert (life.job.state, life.job.reason, life.job.waits) == (JobState.PENDING, Reason.SUBMITTED, False)
    assert "release" in kinds(life)
    assert release(life, prep(JobState.SUCCEEDED)) is life


def test_job_is_cancelled_with_the_code_of_a_predecessor_that_ended_otherwise() -> None:
    life, ready = after_end(held(), prep(JobState.FAILED))
    assert not ready
    assert (life.job.state, life.job.reason, life.job.waits) == (JobState.CANCELLED, Reason.AFTER, False)
    assert "prep, which is FAILED (USER_ERROR)" in event_of(life, "cancel").message


def test_job_whose_predecessor_has_not_ended_is_left_alone() -> None:
    life, ready = after_end(held(), prep(None))
    assert (life, ready) == (held(), False)
    assert release(held(), prep(None)) == held()


def test_paused_job_stays_paused_at_its_release() -> None:
    life = release(held(JobState.PAUSED), prep(JobState.SUCCEEDED))
    assert (life.job.state, life.job.waits) == (JobState.PAUSED, False)


def test_cancelled_job_waits_no_more() -> None:
    life = requests.cancel(held(), Aftermath(), force=False, reason=Reason.USER_REQUEST, message="cancelled")
    assert (life.job.state, life.job.waits) == (JobState.CANCELLED, False)
    assert after_end(life, prep(JobState.SUCCEEDED)) == (life, False)


def test_job_whose_files_cannot_be_copied_says_why_once() -> None:
    before = held()
    life = files_missing(before, prep(JobState.SUCCEEDED), "storage does not answer")
    assert "storage does not answer" in life.job.message
    assert (life.job.state, life.job.waits, kinds(life)) == (JobState.PENDING, True, ["after"])
    assert files_missing(life, prep(JobState.SUCCEEDED), "a part is gone") is life


def test_paused_job_whose_files_cannot_be_copied_keeps_its_message() -> None:
    life = held(JobState.PAUSED)
    assert files_missing(life, prep(JobState.SUCCEEDED), "a part is gone") is life
