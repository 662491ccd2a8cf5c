"""What this process has seen happen to jobs, as spans of their traces: submitted, placed by a round, commanded. Agents add how
ranks started and took their first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from headway.tracing import Sends, Span, SpanRef, trace_of
from service.domain.jobs import Job
from service.domain.lifecycle import JobEvent
from service.usecases.facts import Accepted, BegunTrace, CommandTaken, Fact, Happened
from service.usecases.records import Event

_PLACES = frozenset({JobEvent.ALLOCATE, JobEvent.PREPARE, JobEvent.LOSE})


class JobTraces:
    """Hears of facts (`usecases.facts`), and sends the spans of jobs that are traced.

    Args:
        spans: where they go.
        now: the clock of the service.
    """

    def __init__(self, spans: Sends, now: Callable[[], datetime]) -> None:
        self._spans = spans
        self._now = now

    def begin(self, job_id: str, traceparent: str | None) -> BegunTrace:
        """The trace of a new job: that of whoever submits it with this header, or one of its own."""
        given = SpanRef.parse(traceparent)
        if given is None:
            return BegunTrace(str(trace_of(job_id)), None)
        return BegunTrace(str(given.child("submit", job_id)), str(given))

    def hear(self, fact: Fact) -> None:
        """Send its span, if it has one."""
        match fact:
            case Accepted():
                self._accepted(fact.job, fact.trace)
            case Happened() if fact.event.kind in _PLACES:
                self._placed(fact.job, fact.event)
            case CommandTaken():
                self._taken(fact)

    def _accepted(self, job: Job, trace: BegunTrace | None) -> None:
        ref = SpanRef.parse(job.traceparent)
        if ref is None or trace is None:
            return
        about = {**_about(job.id, job.spec.project, job.reason, 0), "headway.name": job.name}
        self._send("submit", ref, SpanRef.parse(trace.asked_by), job.submitted_at, self._now(), about)

    def _placed(self, job: Job, event: Event) -> None:
        submitted = SpanRef.parse(job.traceparent)
        if submitted is None:
            return
        about = _about(job.id, job.spec.project, event.reason or job.reason, job.newest_generation)
        ref = submitted.child("placed", job.newest_generation)
        # By a round; or by what was decided before, once the job's slots are free; or by the loss of others.
        name = "round" if event.data.get("round_id") else event.kind
        self._send(name, ref, submitted, event.at, self._now(), {**about, "headway.event": event.kind})

    def _taken(self, fact: CommandTaken) -> None:
        ref = SpanRef.parse(fact.traceparent)
        if ref is None:
            return
        about = _about(fact.job_id, fact.project, fact.reason, fact.generation)
        more = {"headway.command": fact.kind, "headway.node_id": fact.node_id}
        placed = ref.child("placed", fact.generation)
        self._send("command", ref, placed, fact.created_at, fact.acknowledged_at, {**about, **more})

    def _send(
        self,
        name: str,
        ref: SpanRef,
        parent: SpanRef | None,
        began_at: datetime,
        ended_at: datetime,
        about: Mapping[str, str | int],
    ) -> None:
        self._spans.send(
            Span(name=name, ref=ref, parent=parent, began_at=began_at, ended_at=ended_at, attributes=about)
        )


def _about(job_id: str, project: str, reason: str, generation: int) -> dict[str, str | int]:
    return {
        "headway.job_id": job_id,
        "headway.project": project,
        "headway.reason": str(reason),
        "headway.generation": generation,
    }
