"""Queue of report entries that the service has not confirmed yet, in order, on disk.

An entry keeps its sequence number through retries and restarts, so the service counts it once. The journal
also stores the read position of the ranks' messages. An entry and the position behind it are one line, so a
restarted agent neither loses nor repeats a message. The journal is not synced to disk: lines are lost only if
the host crashes, and then its ranks are lost too.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from pydantic import TypeAdapter, ValidationError

from headway.contract.agents import AnyEntry, RankEntry, RankMessage, ReportEntry
from headway.contract.merging import merged, parsed
from headway.contract.runtime import Metrics, Progress
from worker_agent.telemetry.facts import Emit, EntryQueued, ignore_fact

_log = structlog.get_logger()

_ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(ReportEntry)
REPLACEABLE = frozenset({Progress.TYPE, Metrics.TYPE})
"""Message types that may be dropped, because later messages of the same type replace them."""
_COMPACT_LINES = 2000
Draft: TypeAlias = Callable[..., AnyEntry]
"""Function that creates an entry from the keyword arguments `sequence` and `at`."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Read position in a rank's messages: `offset` bytes of `rank` of the run."""

    run: str
    rank: int
    offset: int


class Outbox:
    """Queue of report entries. Thread-safe: one thread adds entries, another one sends them.

    Args:
        journal: file of the queue.
        capacity: entries kept while the service is unavailable; beyond it, the oldest progress and metrics are dropped.
        emit: called with every entry, once.
    """

    def __init__(self, journal: Path, capacity: int = 20_000, *, emit: Emit = ignore_fact) -> None:
        self._emit = emit
        self._journal = journal
        self._capacity = capacity
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._entries: deque[AnyEntry] = deque()
        self._positions: dict[tuple[str, int], int] = {}
        self._acknowledged: list[str] = []
        self._last = 0
        self._in_flight = 0
        self._urgent = False
        self._lines = 0
        self._replay()
        # An earlier agent may have sent these entries: merged with newer ones, they would count twice.
        self._in_flight = len(self._entries)
        self._file = self._compact()

    def add(self, draft: Draft, position: ReadPosition | None = None, *, urgent: bool = False) -> None:
        """Queue an entry. An `urgent` entry is sent without waiting for further entries."""
        with self._changed:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            entry = draft(sequence=self._last, at=datetime.now(UTC))
            self._entries.append(entry)
            line: dict[str, Any] = {"entry": entry.model_dump(mode="json")}
            if position is not None:
                self._positions[position.run, position.rank] = position.offset
                line["position"] = [position.run, position.rank, position.offset]
            self._write(line)
            self._shed()
            self._compact_if_long()
            self._urgent = self._urgent or urgent
            self._changed.notify()
        self._emit(EntryQueued(entry))

    def depth(self) -> int:
        """Return the number of entries that the service does not have yet."""
        return len(self._entries)

    def acknowledge(self, command_id: str) -> None:
        """Queue the acknowledgement of a command in memory only, because the service repeats the command."""
        with self._changed:
            self._acknowledged.append(command_id)
            self._urgent = True
            self._changed.notify()

    def position(self, run: str, rank: int) -> int:
        """Return the read position in the messages of this rank."""
        with self._lock:
            return self._positions.get((run, rank), 0)

    def forget(self, run: str) -> None:
        """Drop the read positions of a finished run."""
        with self._lock:
            self._drop_positions(run)
            self._write({"forgotten": run})

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to send, and return True if it is urgent."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._entries or self._acknowledged), timeout_s)
            return self._urgent

    def wait_urgent(self, timeout_s: float) -> None:
        """Wait for further entries, at most `timeout_s`, or until an urgent one arrives."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent, timeout_s)

    def take(self, limit: int) -> tuple[Sequence[AnyEntry], Sequence[str]]:
        """Return the oldest entries and the acknowledgements. They stay queued until `delivered`.

        Entries that were never sent are merged first. The journal keeps the original entries.
        """
        with self._lock:
            self._merge_unsent()
            entries = [self._entries[index] for index in range(min(limit, len(self._entries)))]
            self._in_flight = max(self._in_flight, len(entries))
            self._urgent = len(self._entries) > len(entries)
            return entries, list(self._acknowledged)

    def replace_first(self, entry: AnyEntry) -> None:
        """Send `entry` instead of the oldest entry. The journal keeps the original, which can be truncated again."""
        with self._lock:
            self._entries[0] = entry

    def delivered(self, entries: Sequence[AnyEntry], acknowledged: Sequence[str]) -> None:
        """Remove entries and acknowledgements that the service has received."""
        with self._lock:
            for _ in entries:
                self._entries.popleft()
            self._in_flight = max(0, self._in_flight - len(entries))
            del self._acknowledged[: len(acknowledged)]
            if entries:
                self._write({"delivered": entries[-1].sequence})
            self._compact_if_long()

    def empty(self) -> bool:
        """Return True if the service has received everything."""
        with self._lock:
            return not self._entries and not self._acknowledged

    def close(self) -> None:
        """Close the journal; queued entries stay in it."""
        self._file.close()

    def _merge_unsent(self) -> None:
        """Merge progress that was never sent.

        Entries in flight stay unchanged: the service may have them already, and would count them again inside
        a merged entry.
        """
        unsent = [self._entries.pop() for _ in range(len(self._entries) - self._in_flight)]
        of_ranks = merged(parsed(entry for entry in reversed(unsent) if isinstance(entry, RankEntry)))
        of_node = (entry for entry in unsent if not isinstance(entry, RankEntry))
        self._entries.extend(
            sorted([*(one.entry for one in of_ranks), *of_node], key=lambda one: one.sequence)
        )

    def _shed(self) -> None:
        """Drop the oldest replaceable entry that is not in flight, if the queue is full."""
        if len(self._entries) <= self._capacity:
            return
        for index in range(self._in_flight, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, RankMessage) and entry.message.get("type") in REPLACEABLE:
                del self._entries[index]
                return

    def _compact_if_long(self) -> None:
        """Compact the journal if it has grown. Shed entries leave lines in it, so this also runs during an outage."""
        if self._lines > _COMPACT_LINES + 2 * len(self._entries):
            self._file.close()
            self._file = self._compact()

    def _drop_positions(self, run: str) -> None:
        self._positions = {key: value for key, value in self._positions.items() if key[0] != run}

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._lines += 1

    def _replay(self) -> None:
        try:
            text = self._journal.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for raw in text.splitlines():
            try:
                line = json.loads(raw)
            except ValueError:
                continue  # last line, cut off by a crash
            if "entry" in line:
                self._requeue(line["entry"])
            for run, rank, offset in line.get("positions", [line["position"]] if "position" in line else []):
                self._positions[run, rank] = offset
            if "forgotten" in line:
                self._drop_positions(line["forgotten"])
            self._last = max(self._last, line.get("last", 0))
            while self._entries and self._entries[0].sequence <= line.get("delivered", 0):
                self._entries.popleft()

    def _requeue(self, fields: dict[str, Any]) -> None:
        """Queue an entry of the journal again, unless it has a type that only a newer agent knows."""
        self._last = max(self._last, fields["sequence"])
        try:
            self._entries.append(_ENTRY.validate_python(fields))
        except ValidationError as error:
            _log.error(
                "dropped a journal entry that cannot be parsed", entry=fields.get("kind"), error=str(error)
            )

    def _compact(self) -> Any:
        """Rewrite the journal without delivered entries, and open it for appending."""
        positions = [[run, rank, offset] for (run, rank), offset in self._positions.items()]
        lines: list[dict[str, Any]] = [{"last": self._last, "positions": positions}]
        lines += [{"entry": entry.model_dump(mode="json")} for entry in self._entries]
        temporary = self._journal.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        temporary.replace(self._journal)
        self._lines = len(lines)
        descriptor = os.open(self._journal, os.O_WRONLY | os.O_APPEND)
        return os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")
