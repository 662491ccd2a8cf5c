"""The topics of an event in the history of a job."""

from __future__ import annotations

from typing import Final

from headway.contract.views.jobs import JobState, Reason
from headway.contract.views.webhooks import Topic
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.records import Event

_STATE_CHANGES: Final = frozenset(JobEvent)
_ENDS: Final = {
    JobState.SUCCEEDED: Topic.JOB_SUCCEEDED,
    JobState.FAILED: Topic.JOB_FAILED,
    JobState.CANCELLED: Topic.JOB_CANCELLED,
}
_LOSSES: Final = frozenset({JobEvent.FAIL_RANK, JobEvent.LOSE})
_BY_USERS: Final = frozenset({Reason.USER_REQUEST})
_BUDGET: Final = "budget"
"""Kind of the events about money."""


def topics_of(event: Event) -> tuple[Topic, ...]:
    """Return the topics of an event, the most specific first; none if no webhook is told of it."""
    if event.kind == _BUDGET:
        return (Topic.JOB_BUDGET,)
    if event.kind not in _STATE_CHANGES:
        return ()
    found = []
    if event.reason is Reason.REPLICAS_DIFFER:
        found.append(Topic.REPLICAS_DIFFER)
    if event.state in _ENDS:
        found.append(_ENDS[event.state])
    elif event.kind == JobEvent.START:
        found.append(Topic.JOB_STARTED)
    elif event.kind in _LOSSES:
        found.append(Topic.JOB_RECOVERING)
    elif event.kind == JobEvent.VACATE and event.data.get("to") == 0 and event.reason not in _BY_USERS:
        found.append(Topic.JOB_EVICTED)
    return tuple(found)
