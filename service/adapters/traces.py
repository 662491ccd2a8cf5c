"""Spans of the traces of jobs, from the facts in this process: the submit, the placement by a round,
commands.

Agents add spans for the start of ranks and their first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from headway.tracing import Sends, Span, SpanRef, trace_of
from service.domain.jobs.job import Job
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.records import Event
from service.usecases.ports.facts import Accepted, BegunTrace, CommandTaken, Fact, Happened

_PLACES = frozenset({JobEvent.ALLOCATE, JobEvent.PREPARE, JobEvent.LOSE})


class JobTraces:
    """Traces of jobs, derived from facts (`service.usecases.ports.facts`).

    Args:
        spans: receives the spans.
        now: the clock of the service.
    """

    def __init__(self, spans: Sends, now: Callable[[], datetime]) -> None:
        self._spans = spans
        self._now = now

    def begin(self, job_id: str, traceparent: str | None) -> BegunTrace:
        """Return the trace of a new job: the trace of the submitter's header, or a new one."""
        given = SpanRef.parse(traceparent)
        if given is None:
            return BegunTrace(str(trace_of(job_id)), None)
        return BegunTrace(str(given.child("submit", job_id)), str(given))

    def hear(self, fact: Fact) -> None:
        """Send the span of a fact, if it has one."""
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
        # The grant came from a round, from an earlier decision once its slots were free, or after a loss.
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
