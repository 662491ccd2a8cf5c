"""Report entries that the service has not confirmed yet, in order, on disk.

An entry keeps its sequence number through retries and restarts, so the service counts it once. The journal
also remembers how far the ranks' messages were read: an entry and the position behind it are one
line, so a restarted agent neither loses nor repeats a message. Nothing is synced: only a crash of the
host loses lines, and its ranks with them.
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

from headway.contract.agents import AnyEntry, RankMessage, ReportEntry
from headway.contract.runtime import Metrics, Progress
from worker_agent.facts import Noted, Tell, tell_nobody
from worker_agent.merging import merged

_log = structlog.get_logger()

_ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(ReportEntry)
REPLACEABLE = frozenset({Progress.TYPE, Metrics.TYPE})
"""Later messages of these kinds make up for a lost one; nothing makes up for a lost exit."""
_COMPACT_LINES = 2000
Draft: TypeAlias = Callable[[int, datetime], AnyEntry]
"""Makes an entry from its sequence number and time."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """How far a rank's messages were read: `offset` bytes of `rank` of the run."""

    run: str
    rank: int
    offset: int


class Outbox:
    """The queue. One thread adds, another one sends; both are safe.

    Args:
        journal: the file.
        capacity: entries kept while the service is away; beyond it the oldest progress and metrics go.
        tell: hears of every entry, once.
    """

    def __init__(self, journal: Path, capacity: int = 20_000, *, tell: Tell = tell_nobody) -> None:
        self._tell = tell
        self._journal = journal
        self._capacity = capacity
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._entries: deque[AnyEntry] = deque()
        self._positions: dict[tuple[str, int], int] = {}
        self._acknowledged: list[str] = []
        self._last = 0
        self._in_flight = 0
        self._urgent = False
        self._lines = 0
        self._replay()
        self._file = self._compact()

    def add(self, draft: Draft, position: ReadPosition | None = None, *, urgent: bool = False) -> None:
        """Queue an entry. `urgent` ones are sent without waiting for company."""
        with self._news:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            entry = draft(self._last, datetime.now(UTC))
            self._entries.append(entry)
            line: dict[str, Any] = {"entry": entry.model_dump(mode="json")}
            if position is not None:
                self._positions[position.run, position.rank] = position.offset
                line["position"] = [position.run, position.rank, position.offset]
            self._write(line)
            self._shed()
            self._compact_if_long()
            self._urgent = self._urgent or urgent
            self._news.notify()
        self._tell(Noted(entry))

    def depth(self) -> int:
        """Entries that the service does not have yet."""
        return len(self._entries)

    def acknowledge(self, command_id: str) -> None:
        """Tell the service that a command was taken up. Not kept on disk: it would be sent again."""
        with self._news:
            self._acknowledged.append(command_id)
            self._urgent = True
            self._news.notify()

    def position(self, run: str, rank: int) -> int:
        """How far the messages of this rank were read."""
        with self._lock:
            return self._positions.get((run, rank), 0)

    def forget(self, run: str) -> None:
        """Drop the read positions of a run that is over."""
        with self._lock:
            self._drop_positions(run)
            self._write({"forgotten": run})

    def wait(self, timeout_s: float) -> bool:
        """Wait for something to send; whether it is urgent."""
        with self._news:
            self._news.wait_for(lambda: bool(self._entries or self._acknowledged), timeout_s)
            return self._urgent

    def wait_urgent(self, timeout_s: float) -> None:
        """Wait for company of what is queued, at most so long, and not at all once something is urgent."""
        with self._news:
            self._news.wait_for(lambda: self._urgent, timeout_s)

    def take(self, limit: int) -> tuple[Sequence[AnyEntry], Sequence[str]]:
        """The oldest entries, and the acknowledgements. They stay queued until `delivered`.

        What was never sent is made fewer first; the journal keeps it as it was.
        """
        with self._lock:
            self._merge_unsent()
            entries = [self._entries[index] for index in range(min(limit, len(self._entries)))]
            self._in_flight = max(self._in_flight, len(entries))
            self._urgent = len(self._entries) > len(entries)
            return entries, list(self._acknowledged)

    def replace_first(self, entry: AnyEntry) -> None:
        """Send this in place of the oldest entry. The journal keeps what it was: it may be smaller next time as well."""
        with self._lock:
            self._entries[0] = entry

    def delivered(self, entries: Sequence[AnyEntry], acknowledged: Sequence[str]) -> None:
        """The service has these."""
        with self._lock:
            for _ in entries:
                self._entries.popleft()
            self._in_flight = 0
            del self._acknowledged[: len(acknowledged)]
            if entries:
                self._write({"delivered": entries[-1].sequence})
            self._compact_if_long()

    def empty(self) -> bool:
        """Whether the service has everything."""
        with self._lock:
            return not self._entries and not self._acknowledged

    def close(self) -> None:
        """Close the journal; what is queued stays in it."""
        self._file.close()

    def _merge_unsent(self) -> None:
        """What is in flight stays as it is: the service may have it already, and would count it again within another."""
        unsent = [self._entries.pop() for _ in range(len(self._entries) - self._in_flight)]
        self._entries.extend(merged(reversed(unsent)))

    def _shed(self) -> None:
        """Keep the queue bounded. What was in flight stays: the service may have it already."""
        if len(self._entries) <= self._capacity:
            return
        for index in range(self._in_flight, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, RankMessage) and entry.message.get("type") in REPLACEABLE:
                del self._entries[index]
                return

    def _compact_if_long(self) -> None:
        """Also while the service is away: what is shed leaves its line behind."""
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
            text = self._journal.read_text()
        except FileNotFoundError:
            return
        for raw in text.splitlines():
            try:
                line = json.loads(raw)
            except ValueError:
                continue  # the last line, cut off by a crash
            if "entry" in line:
                self._take_back(line["entry"])
            for run, rank, offset in line.get("positions", [line["position"]] if "position" in line else []):
                self._positions[run, rank] = offset
            if "forgotten" in line:
                self._drop_positions(line["forgotten"])
            self._last = max(self._last, line.get("last", 0))
            while self._entries and self._entries[0].sequence <= line.get("delivered", 0):
                self._entries.popleft()

    def _take_back(self, fields: dict[str, Any]) -> None:
        """Queue an entry of the journal again, unless only a newer agent knows what it is."""
        self._last = max(self._last, fields["sequence"])
        try:
            self._entries.append(_ENTRY.validate_python(_with_rank(fields)))
        except ValidationError as error:
            _log.error("dropping an entry that cannot be read", entry=fields.get("kind"), error=str(error))

    def _compact(self) -> Any:
        """Rewrite the journal without what was delivered, and open it for appending."""
        positions = [[run, rank, offset] for (run, rank), offset in self._positions.items()]
        lines: list[dict[str, Any]] = [{"last": self._last, "positions": positions}]
        lines += [{"entry": entry.model_dump(mode="json")} for entry in self._entries]
        temporary = self._journal.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        temporary.replace(self._journal)
        self._lines = len(lines)
        descriptor = os.open(self._journal, os.O_WRONLY | os.O_APPEND)
        return os.fdopen(descriptor, "a", buffering=1)


def _with_rank(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a journal, with the rank that earlier versions named in the message alone."""
    if entry["kind"] != "rank_message" or "rank" in entry:
        return entry
    return {**entry, "rank": entry["message"]["rank"]}
