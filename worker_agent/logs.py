"""Ship the output of ranks to the service. Ranks write to files and never wait for it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from worker_agent.folders import RunFolder, read_json, write_json
from worker_agent.service_api import Backoff, NotJoined, Refused, Unreachable

_log = structlog.get_logger()

CHUNK_BYTES = 256 << 10
QUOTA_BYTES = 50 << 20
"""Of one rank in one generation; the rest is not shipped."""
TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_EVERY_S = 0.3
_TRUNCATED = b"\n[headway] This rank wrote more than %d MiB; the rest of its output is not kept.\n"


class LogSink(Protocol):
    """Where log pieces go."""

    def ship_log(self, job_id: str, generation: int, rank: int, offset: int, data: bytes) -> None:
        """Store a piece at its offset."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run whose logs are to be shipped."""

    job_id: str
    generation: int
    ranks: tuple[int, ...]
    folder: RunFolder


def cut(data: bytes, *, final: bool) -> int:
    """How many bytes of `data` to ship now: whole lines, or all if no more will come.

    A full chunk without a line end is cut between two characters.
    """
    if final:
        return len(data)
    line_end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if line_end or len(data) < CHUNK_BYTES:
        return line_end
    end = len(data)
    while end > len(data) - 4 and data[end - 1] & 0xC0 == 0x80:  # inside a UTF-8 sequence
        end -= 1
    return end - 1 if data[end - 1] & 0xC0 == 0xC0 else end


def tail(path: Path) -> list[str]:
    """The last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - _TAIL_BYTES)
            file.seek(start)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = text.splitlines()
    return lines[1:][-TAIL_LINES:] if start and len(lines) > 1 else lines[-TAIL_LINES:]


class LogShipper:
    """The thread's body. Other threads `watch` runs, `hurry` it, and say when a run is `over`."""

    def __init__(self, sink: LogSink, stopping: threading.Event, quota_bytes: int = QUOTA_BYTES) -> None:
        self._sink = sink
        self._stopping = stopping
        self._quota_bytes = quota_bytes
        self._lock = threading.Lock()
        self._runs: dict[str, LoggedRun] = {}
        self._over: set[str] = set()
        self._woken = threading.Event()
        self._backoff = Backoff(random.Random())
        self._sizes: dict[Path, int] = {}

    def watch(self, run: LoggedRun) -> None:
        """Ship the logs of this run from now on."""
        with self._lock:
            self._runs[run.folder.name] = run
        self._woken.set()

    def over(self, run: str) -> None:
        """No process writes to the logs of this run any more."""
        with self._lock:
            self._over.add(run)
        self._woken.set()

    def hurry(self) -> None:
        """Ship what there is now: a rank has ended."""
        self._woken.set()

    def run(self) -> None:
        """Ship until told to stop."""
        while not self._stopping.is_set():
            self._woken.wait(_EVERY_S if self._watched() else None)
            self._woken.clear()
            try:
                self.run_once()
            except (Unreachable, NotJoined):
                self._stopping.wait(self._backoff.next_s())
            else:
                self._backoff.reset()

    def run_once(self) -> None:
        """Ship the news of every log once; a run that is over is shipped to its end and left.

        Raises:
            Unreachable, NotJoined: the service cannot take it now; call again.
        """
        with self._lock:
            over = set(self._over)
        for run in self._watched():
            final = run.folder.name in over
            for rank in run.ranks:
                self._ship(run, rank, final=final)
            if final:
                run.folder.shipped.touch()
                with self._lock:
                    del self._runs[run.folder.name]
                    self._over.discard(run.folder.name)

    def _watched(self) -> Sequence[LoggedRun]:
        with self._lock:
            return list(self._runs.values())

    def _ship(self, run: LoggedRun, rank: int, *, final: bool) -> None:
        path = run.folder.log(rank)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return
        # A line without an end is held back while it grows, and shipped once it has stopped to.
        still = self._sizes.get(path) == size
        self._sizes[path] = size
        offset = read_json(run.folder.log_offset(rank)) or 0
        with path.open("rb") as file:
            while offset < min(size, self._quota_bytes):
                file.seek(offset)
                data = file.read(min(CHUNK_BYTES, self._quota_bytes - offset))
                end = offset + len(data)
                ends = end == self._quota_bytes or (end >= size and (final or still))
                data = data[: cut(data, final=ends)]
                if not data:
                    return
                offset = self._post(run, rank, offset, data)
        if size > self._quota_bytes:
            if offset == self._quota_bytes:
                self._post(run, rank, offset, _TRUNCATED % (self._quota_bytes >> 20))
            if size > 2 * self._quota_bytes:
                os.truncate(path, self._quota_bytes)  # ranks append, so they go on behind it
        if final:
            self._sizes.pop(path, None)

    def _post(self, run: LoggedRun, rank: int, offset: int, data: bytes) -> int:
        try:
            self._sink.ship_log(run.job_id, run.generation, rank, offset, data)
        except Refused as error:
            _log.warning("the service refused a piece of a log", run=run.folder.name, error=str(error))
        offset += len(data)
        write_json(run.folder.log_offset(rank), offset)
        return offset
