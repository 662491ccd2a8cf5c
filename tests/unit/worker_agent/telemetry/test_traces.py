"""Spans that the agent makes of its own news."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headway.contract.agents import (
    AnyCommand,
    OrderCommand,
    RankMessage,
    RanksStarted,
    Released,
    RunCommand,
    StartFailed,
    StopCommand,
)
from headway.tracing import Span, SpanRef, trace_of
from tests.unit.headway.contract.examples import COMMANDS
from worker_agent.telemetry.facts import CommandRead, EntryQueued
from worker_agent.telemetry.traces import RunTraces

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = next(one for one in COMMANDS if isinstance(one, RunCommand))
ORDER = next(one for one in COMMANDS if isinstance(one, OrderCommand))
STOP = next(one for one in COMMANDS if isinstance(one, StopCommand))


class Sent:
    """Where spans go, and the traces that are told of what happens."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.traces = RunTraces(self, "alpha", lambda: AT)

    def send(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        """Nothing is left."""

    def read(self, command: AnyCommand, traceparent: SpanRef | None) -> None:
        text = None if traceparent is None else str(traceparent)
        self.traces.receive(CommandRead(command.model_copy(update={"traceparent": text}), 0.0))

    def note(self, kind: Any, **fields: Any) -> None:
        head = {"sequence": 1, "job_id": RUN.job_id, "generation": RUN.generation, "at": AT}
        self.traces.receive(EntryQueued(kind(**{**head, **fields})))

    def said(self, kind: str, generation: int) -> None:
        self.note(RankMessage, rank=0, message={"type": kind, "generation": generation})

    def names(self) -> list[str]:
        return [one.name for one in self.spans]


def test_a_newcomer_is_ready_and_takes_its_first_step_after_its_start() -> None:
    sent, command = Sent(), trace_of("j").child("command", "c")
    sent.read(RUN, command)
    sent.note(RanksStarted, how="spawn")
    sent.said("ready", RUN.generation)
    sent.said("ready", RUN.generation)
    sent.said("first_step", RUN.generation)
    assert sent.names() == ["start_ranks", "ready", "first_step"], "the first of the ranks counts"
    start, *rest = sent.spans
    assert start.parent == command
    assert [one.parent for one in rest] == [start.ref, start.ref]
    assert len({one.ref for one in sent.spans}) == 3
    assert start.attributes["headway.ranks"] == len(RUN.ranks)


def test_a_start_that_failed_says_so() -> None:
    sent = Sent()
    sent.read(RUN, trace_of("j"))
    sent.note(StartFailed, message="secret reason", retryable=True)
    sent.said("first_step", RUN.generation)
    (span,) = sent.spans
    assert (span.name, span.failed) == ("start_ranks", True)
    assert "secret reason" not in str(span)


def test_an_order_lasts_until_a_rank_is_a_member_of_what_was_ordered() -> None:
    sent, command = Sent(), trace_of("j").child("command", "order")
    sent.read(ORDER, command)
    sent.said("switched", ORDER.generation - 1)
    assert sent.spans == []
    sent.said("switched", ORDER.generation)
    (span,) = sent.spans
    assert (span.name, span.parent) == ("switch", command)


def test_a_stop_lasts_until_everything_is_released_and_nothing_comes_after_it() -> None:
    sent = Sent()
    sent.read(RUN, trace_of("j"))
    sent.note(RanksStarted, how="spawn")
    sent.read(STOP, trace_of("j"))
    sent.note(Released)
    sent.said("first_step", RUN.generation)
    assert sent.names() == ["start_ranks", "stop_ranks"]


def test_nothing_is_told_of_a_job_that_nobody_traces() -> None:
    sent = Sent()
    for command in (RUN, ORDER, STOP):
        sent.read(command, None)
    sent.note(RanksStarted, how="spawn")
    sent.said("first_step", RUN.generation)
    sent.said("switched", ORDER.generation)
    sent.note(Released)
    assert sent.spans == []


def test_commands_of_which_nothing_comes_are_forgotten() -> None:
    sent = Sent()
    for number in range(3000):
        sent.read(RUN.model_copy(update={"job_id": f"j{number}"}), trace_of("j"))
    sent.note(RanksStarted, job_id="j0", how="spawn")
    sent.note(RanksStarted, job_id="j2999", how="spawn")
    assert [one.attributes["headway.job_id"] for one in sent.spans] == ["j2999"]
