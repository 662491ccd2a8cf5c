"""Spans of traced jobs on this host: from a command to the start of processes, and from there to the first step.

They are derived from the agent's own report entries. Operations that began before a restart of the agent have
no span.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock

from headway.contract.agents import (
    AnyCommand,
    AnyEntry,
    ExecCommand,
    ExecInput,
    OrderCommand,
    RankMessage,
    RanksStarted,
    Released,
    RunCommand,
    StartFailed,
    StopCommand,
)
from headway.contract.runtime import FirstStep, Ready, Switched
from headway.tracing import Sends, Span, SpanRef
from worker_agent.telemetry.facts import CommandRead, EntryQueued, Fact

_MOST = 1024
"""Maximum number of open operations; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """Operation that a command began, with the start time of its current part."""

    parent: SpanRef
    since: datetime
    node_ranks: int


class RunTraces:
    """Receiver of facts (`facts`) that sends spans."""

    def __init__(
        self, spans: Sends, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._spans = spans
        self._node = node
        self._now = now
        self._lock = Lock()
        self._open: OrderedDict[tuple[str, str, int], _Operation] = OrderedDict()

    def receive(self, fact: Fact) -> None:
        """Send the span that ends with this fact, if any."""
        with self._lock:
            match fact:
                case CommandRead() if fact.command is not None:
                    self._on_command(fact.command)
                case EntryQueued():
                    self._on_entry(fact.entry)

    def _on_command(self, command: AnyCommand) -> None:
        if isinstance(command, ExecCommand | ExecInput):
            return  # commands beside ranks have no spans
        parent = SpanRef.parse(command.traceparent)
        if parent is None:
            return
        what = {RunCommand: "start", OrderCommand: "switch", StopCommand: "stop"}[type(command)]
        ranks = len(command.ranks) if isinstance(command, RunCommand) else 0
        self._start(what, command.job_id, command.generation, _Operation(parent, self._now(), ranks))

    def _start(self, what: str, job_id: str, generation: int, operation: _Operation) -> None:
        self._open[what, job_id, generation] = operation
        while len(self._open) > _MOST:
            self._open.popitem(last=False)

    def _on_entry(self, entry: AnyEntry) -> None:
        match entry:
            case RanksStarted():
                self._end("start", "start_ranks", entry.job_id, entry.generation, then=("train", "ready"))
            case StartFailed():
                self._end("start", "start_ranks", entry.job_id, entry.generation, failed=True)
            case Released():
                self._end("stop", "stop_ranks", entry.job_id, entry.generation)
                for what in ("start", "train", "ready"):
                    self._open.pop((what, entry.job_id, entry.generation), None)
            case RankMessage():
                # A message names the generation that its rank belongs to now; the operations of a run have
                # that of its command.
                match entry.message.get("type"):
                    case FirstStep.TYPE:
                        self._end("train", "first_step", entry.job_id, entry.generation)
                    case Ready.TYPE:
                        self._end("ready", "ready", entry.job_id, entry.generation)
                    case Switched.TYPE:
                        self._end("switch", "switch", entry.job_id, int(entry.message["generation"]))

    def _end(
        self,
        what: str,
        name: str,
        job_id: str,
        generation: int,
        *,
        then: tuple[str, ...] = (),
        failed: bool = False,
    ) -> None:
        """Send the span of an operation. The first of the ranks on this host ends it."""
        operation = self._open.pop((what, job_id, generation), None)
        if operation is None:
            return
        now, ref = self._now(), operation.parent.child(what, self._node, generation)
        about: dict[str, str | int] = {
            "headway.job_id": job_id,
            "headway.generation": generation,
            "headway.node": self._node,
        }
        if operation.node_ranks:
            about["headway.ranks"] = operation.node_ranks
        self._spans.send(
            Span(
                name=name,
                ref=ref,
                parent=operation.parent,
                began_at=operation.since,
                ended_at=now,
                attributes=about,
                failed=failed,
            )
        )
        for next_ in then:
            self._start(next_, job_id, generation, _Operation(ref, now, operation.node_ranks))
