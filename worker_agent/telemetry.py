"""What watches the agent, put together: the metrics that it serves, and where the traces of jobs go. Neither costs anything where
nobody has asked for it.
"""

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
from worker_agent.facts import Fact, Shipped, Taken, Tell
from worker_agent.folders import StateFolder
from worker_agent.logs import LogSink
from worker_agent.traces import RunTraces

_log = structlog.get_logger()
_MOST_LOGS = 4096


class Telemetry:
    """Of one agent. Its parts `tell` it what happens; who hears of it joins when all of them are there."""

    def __init__(self) -> None:
        self._hearers: list[Tell] = []
        self._listener: Listener | None = None
        self._spans: tracing.Sends | None = None

    def tell(self, fact: Fact) -> None:
        """Hand it to whoever hears. Whoever cannot take it in ends no agent."""
        for hearer in self._hearers:
            try:
                hearer(fact)
            except Exception:  # noqa: BLE001  # the log has it
                _log.exception("a fact was not taken in", fact=type(fact).__name__)

    def serve(
        self,
        bind: Bind,
        *,
        slots: Callable[[], Sequence[SlotInfo]],
        holding: Callable[[], Sequence[Holding]],
        waiting: Callable[[], int],
        state: StateFolder,
    ) -> None:
        """Count, and answer `/metrics`. See `metrics.Seen`.

        Raises:
            HeadwayError: the address cannot be listened at.
        """
        from worker_agent.metrics import Seen, agent_registry  # noqa: PLC0415  # only where it is asked for

        registry, counts = agent_registry(Seen(slots=slots, holding=holding, waiting=waiting, state=state))
        self._listener = listen(bind, registry)
        self._hearers.append(counts.hear)
        _log.info("serving metrics", host=bind.host, port=self._listener.port)

    def trace(self, node: str) -> None:
        """Send traces of jobs, if the environment names a collector."""
        missing = partial(_log.warning, "no traces")
        self._spans = tracing.collector(os.environ, "headway-agent", node, VERSION, missing=missing)
        if self._spans is not None:
            self._hearers.append(RunTraces(self._spans, node).hear)

    def close(self) -> None:
        """Send what is left, and serve no more."""
        if self._spans is not None:
            self._spans.close()
        if self._listener is not None:
            self._listener.close()


class RememberedHealth:
    """The slots with their health as it was read last: whoever monitors asks no device."""

    def __init__(self, slots: Sequence[SlotInfo], read: Callable[[], list[SlotInfo]]) -> None:
        self._last = list(slots)
        self._read = read

    def look(self) -> list[SlotInfo]:
        """Read it anew."""
        self._last = self._read()
        return self._last

    def last(self) -> Sequence[SlotInfo]:
        """As it was read last."""
        return self._last


class WatchedCommands:
    """Hands commands on, and tells what became of each."""

    def __init__(
        self, handle: Callable[[AnyCommand], None], holding: Callable[[], Sequence[Holding]], tell: Tell
    ) -> None:
        self._handle = handle
        self._holding = holding
        self._tell = tell

    def handle(self, command: AnyCommand) -> None:
        """See `commands.Handle`."""
        self._handle(command)
        held = Holding(job_id=command.job_id, generation=command.generation) in self._holding()
        self._tell(Taken(command, ignored=isinstance(command, RunCommand) and not held))


class WatchedLogs:
    """Hands pieces of output on, and tells how much was left out between them: a rank's offsets are those of its output."""

    def __init__(self, sink: LogSink, tell: Tell) -> None:
        self._sink = sink
        self._tell = tell
        self._ends: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def ship_log(self, job_id: str, generation: int, rank: int, offset: int, data: bytes) -> bool:
        """See `logs.LogSink`."""
        followed = self._sink.ship_log(job_id, generation, rank, offset, data)
        key = (job_id, generation, rank)
        left_out = max(0, offset - self._ends.pop(key, offset))
        self._ends[key] = offset + len(data)
        if len(self._ends) > _MOST_LOGS:
            self._ends.popitem(last=False)
        self._tell(Shipped(len(data), left_out))
        return followed
