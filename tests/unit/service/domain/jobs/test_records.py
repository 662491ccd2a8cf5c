"""Tests of the events in the history of a job."""

from __future__ import annotations

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.records import event_about
from tests.unit.service.builders import NOW, job_of


def test_an_event_shows_the_job_as_it_is_now() -> None:
    job = job_of("j1", JobState.RESIZING, generation=7)
    event = event_about(job, "prepare", message="grows", at=NOW, reason=Reason.ALLOCATED, data={"slots": 4})
    assert (event.job_id, event.state, event.generation) == ("j1", JobState.RESIZING, 7)
    assert (event.kind, event.message, event.at) == ("prepare", "grows", NOW)
    assert (event.reason, event.data) == (Reason.ALLOCATED, {"slots": 4})


def test_an_event_may_have_neither_reason_nor_data() -> None:
    event = event_about(job_of(), "first_step", message="", at=NOW)
    assert (event.reason, event.data) == (None, {})
