"""Setup of the agent's metrics endpoint and of its traces. Neither costs anything unless it is configured."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from headway import tracing
from headway.contract.agents import AnyCommand, Holding, RunCommand, SlotInfo
from headway.exposing import Bind, Listener, listen
from worker_agent import VERSION
from worker_agent.logs.shipping import LogSink
from worker_agent.telemetry.facts import CommandHandled, Emit, Fact, OutputShipped, StateSources
from worker_agent.telemetry.traces import RunTraces

_log = structlog.get_logger()
_MOST_LOGS = 4096


class Telemetry:
    """Distribution of the agent's facts to metrics and traces.

    The parts of the agent call `emit` from the start. `serve` and `trace` add receivers once all parts exist.
    """

    def __init__(self) -> None:
        self._receivers: list[Emit] = []
        self._listener: Listener | None = None
        self._spans: tracing.Sends | None = None

    def emit(self, fact: Fact) -> None:
        """Pass a fact to all receivers. An error in a receiver is only logged."""
        for receiver in self._receivers:
            try:
                receiver(fact)
            except Exception:  # noqa: BLE001  # it is logged, and must not end the agent
                _log.exception("a fact could not be processed", fact=type(fact).__name__)

    def serve(self, bind: Bind, sources: StateSources) -> None:
        """Count facts, and serve `/metrics`.

        Raises:
            HeadwayError: the agent cannot listen on the address.
        """
        from worker_agent.telemetry.metrics import agent_registry  # noqa: PLC0415  # only on use

        registry, counts = agent_registry(sources)
        self._listener = listen(bind, registry)
        self._receivers.append(counts.receive)
        _log.info("serving metrics", host=bind.host, port=self._listener.port)

    def trace(self, node: str) -> None:
        """Send traces of jobs, if the environment names a collector."""
        missing = partial(_log.warning, "no traces")
        self._spans = tracing.collector(os.environ, "headway-agent", node, VERSION, missing=missing)
        if self._spans is not None:
            self._receivers.append(RunTraces(self._spans, node).receive)

    def close(self) -> None:
        """Send the remaining spans, and stop serving metrics."""
        if self._spans is not None:
            self._spans.close()
        if self._listener is not None:
            self._listener.close()


class RememberedHealth:
    """Slots with their last known health, so that a scrape does not query any device."""

    def __init__(self, slots: Sequence[SlotInfo], read_health: Callable[[], list[SlotInfo]]) -> None:
        self._last = list(slots)
        self._read_health = read_health

    def read(self) -> list[SlotInfo]:
        """Read the health of all slots again, and return them."""
        self._last = self._read_health()
        return self._last

    def last(self) -> Sequence[SlotInfo]:
        """Return the slots with their last known health."""
        return self._last


class WatchedCommands:
    """Wrapper of a command handler that emits the result of each command."""

    def __init__(
        self, handle: Callable[[AnyCommand], None], holding: Callable[[], Sequence[Holding]], emit: Emit
    ) -> None:
        self._handle = handle
        self._holding = holding
        self._emit = emit

    def handle(self, command: AnyCommand) -> None:
        """Handle the command, and emit a fact that says if it was accepted or ignored."""
        self._handle(command)
        held = Holding(job_id=command.job_id, generation=command.generation) in self._holding()
        self._emit(CommandHandled(command, ignored=isinstance(command, RunCommand) and not held))


class WatchedLogs:
    """Wrapper of a log sink that emits how much output was shipped and left out.

    The bytes left out are the gap between the offsets of two pieces.
    """

    def __init__(self, sink: LogSink, emit: Emit) -> None:
        self._sink = sink
        self._emit = emit
        self._ends: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> bool:
        """Ship the piece, and emit a fact with its size and the gap before it."""
        followed = self._sink.ship_log(job_id, generation, rank, offset, data, present_rank=present_rank)
        key = (job_id, generation, rank)
        left_out = max(0, offset - self._ends.pop(key, offset))
        self._ends[key] = offset + len(data)
        if len(self._ends) > _MOST_LOGS:
            self._ends.popitem(last=False)
        self._emit(OutputShipped(len(data), left_out))
        return followed
