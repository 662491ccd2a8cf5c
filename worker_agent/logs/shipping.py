"""Shipping of rank output to the service. Ranks write to files, and never wait for the shipper."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import structlog

from worker_agent.host.folders import LoggedRun, boot_s, read_json, write_json
from worker_agent.link.redaction import SHORTEST_BYTES, Redactor, masked
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Backoff, NotJoined, Refused, Unreachable
from worker_agent.logs.punch_hole import Holes

_log = structlog.get_logger()

CHUNK_BYTES = 256 << 10
QUOTA_BYTES = 50 << 20
"""Bytes of one rank's output shipped within `QUOTA_S`. The rest is left out, with a notice in the output."""
QUOTA_S = 3600.0
LAST_WORDS_BYTES = 64 << 10
"""Bytes at the end of a rank's output that are shipped regardless of the quota: they say why the rank ended."""
BURST = 100
PACE_S = 10.0
"""Seconds per piece after the first `BURST` pieces, unless a piece is full. Each piece is an object in storage."""
FOLLOWED_PACE_S = 1.0
"""Seconds per piece while a client follows the output, as the answer to the previous piece says."""
TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_KEPT_BYTES = 1 << 20
"""Shipped bytes that stay on disk, because the log tail of a failure is read from them."""
TURN_BYTES = 8 << 20
"""Bytes of one rank's output that are shipped before it is the next rank's turn."""
_EVERY_S = 0.3
_LOOK_S = 1.0
"""Seconds between checks of the log sizes while the service is unavailable."""
_FROM_HERE = b"\n[headway] This rank wrote more than %d MiB within an hour. The rest of its output in this hour is left out.\n"
_MISSING = b"[headway] Truncated: %d bytes are missing here.\n"
_NOTICES_BYTES = 1 << 10
"""Upper bound on the bytes of both notices. They take the offsets of the output that is left out."""


class LogSink(Protocol):
    """Destination of log pieces."""

    def ship_log(self, job_id: str, generation: int, rank: int, offset: int, data: bytes) -> bool:
        """Store a piece at its offset, and return True if a client follows the output."""
        ...


def cut(data: bytes, *, final: bool) -> int:
    """Return the number of bytes of `data` to ship now: whole lines, or all if `final`.

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


def _hide(redactor: Redactor, file: BinaryIO, offset: int, data: bytes, *, final: bool) -> bytes:
    """Return the piece at `offset` with secrets masked, including those that cross its ends.

    If the end of the piece may be the beginning of a secret, and more output can follow, that end is cut off.
    """
    first = max(0, offset - redactor.reach)
    file.seek(first)
    around = file.read(offset - first + len(data) + redactor.reach)
    spans = list(redactor.spans(around))
    begin, end = offset - first, offset - first + len(data)
    if len(around) < end + redactor.reach:  # the bytes behind the piece are not written yet
        begun = redactor.begun(around)
        if not final:
            end = max(begin, min(end, begun))
        elif len(around) - begun >= SHORTEST_BYTES:
            spans.append((begun, len(around)))
    return masked(around, iter(spans))[begin:end]


def tail(path: Path) -> list[str]:
    """Return the last lines of a log."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedOutput:
    """Shipping state of the output of a rank.

    Attributes:
        offset: bytes that were shipped or left out.
        since_s: start of the current quota hour (boot-time clock).
        in_hour: bytes shipped within that hour.
        gap: offset at which output began to be left out because of the quota, if any.
        lost: begin and end of output that was discarded before it was shipped, because there was too much of it.
    """

    offset: int = 0
    since_s: float = 0.0
    in_hour: int = 0
    gap: int | None = None
    lost: tuple[int, int] | None = None

    @classmethod
    def from_json(cls, saved: Any) -> ShippedOutput:
        """Return the state from the JSON in the file, which is None if there is no file."""
        shipped = cls(**saved) if saved else cls()
        return shipped if shipped.lost is None else replace(shipped, lost=(shipped.lost[0], shipped.lost[1]))

    def at(self, now_s: float) -> ShippedOutput:
        """Return the state in the current quota hour.

        A clock before `since_s` belongs to another boot, so a new hour begins.
        """
        over = not 0 <= now_s - self.since_s < QUOTA_S
        return replace(self, since_s=now_s, in_hour=0) if over else self


class LogShipper:
    """Body of the shipping thread. Other threads call `watch`, `hurry` and `over`."""

    def __init__(
        self,
        sink: LogSink,
        stopping: threading.Event,
        quota_bytes: int = QUOTA_BYTES,
        *,
        now_s: Callable[[], float] = boot_s,
        holes: Holes | None = None,
        secrets: RunSecrets | None = None,
    ) -> None:
        self._sink = sink
        self._secrets = secrets or RunSecrets()
        self._stopping = stopping
        self._quota_bytes = quota_bytes
        self._now_s = now_s
        self._holes = holes or Holes()
        self._lock = threading.Lock()
        self._runs: dict[str, LoggedRun] = {}
        self._over: set[str] = set()
        self._woken = threading.Event()
        self._backoff = Backoff(random.Random())
        self._sizes: dict[Path, int] = {}
        self._unsaved: dict[Path, ShippedOutput] = {}
        """States that are not yet written to the files of offsets."""
        self._pieces: dict[Path, tuple[float, float]] = {}
        """Tokens of each log for small pieces, with the time of the last update."""
        self._pace_s: dict[Path, float] = {}

    def watch(self, run: LoggedRun) -> None:
        """Ship the logs of this run from now on."""
        with self._lock:
            self._runs[run.folder.name] = run
        self._woken.set()

    def over(self, run: str) -> None:
        """Note that no process writes to the logs of this run any more."""
        with self._lock:
            self._over.add(run)
        self._woken.set()

    def hurry(self) -> None:
        """Ship the available output at once, because a rank has ended."""
        self._woken.set()

    def run(self) -> None:
        """Ship output until the agent stops."""
        while not self._stopping.is_set():
            self._woken.wait(_EVERY_S if self._watched() else None)
            self._woken.clear()
            try:
                self.run_once()
            except (Unreachable, NotJoined):
                self._wait_for_service(self._backoff.next_s())
            else:
                self._backoff.reset()

    def keep_short(self) -> None:
        """Discard output beyond the hourly quota, so that the disk does not fill.

        This happens while the service is unavailable, or accepts pieces more slowly than a rank writes.
        """
        for run in self._watched():
            self._keep_short(run)

    def _keep_short(self, run: LoggedRun) -> None:
        for rank in run.ranks:
            with contextlib.suppress(FileNotFoundError):
                size = run.folder.log(rank).stat().st_size
                shipped = ShippedOutput.from_json(read_json(run.folder.log_offset(rank)))
                self._discard_excess(run, rank, size, shipped)

    def _wait_for_service(self, wait_s: float) -> None:
        while wait_s > 0:
            self.keep_short()
            self._stopping.wait(min(wait_s, _LOOK_S))
            wait_s -= _LOOK_S

    def _discard_excess(self, run: LoggedRun, rank: int, size: int, shipped: ShippedOutput) -> ShippedOutput:
        """Discard the output beyond the quota, and return the new state.

        A MiB is kept on both sides of the gap, because the secrets at its edges are detected with it.
        """
        begin = shipped.offset + self._quota_bytes if shipped.lost is None else shipped.lost[0]
        end = size - 2 * _KEPT_BYTES
        if shipped.gap is not None or end - begin < self._quota_bytes // 4:
            return shipped
        if shipped.lost is None or end - shipped.lost[1] >= self._quota_bytes // 4:
            shipped = replace(shipped, lost=(begin, end))
            write_json(run.folder.log_offset(rank), asdict(shipped))  # before its bytes are freed
            self._holes.empty(str(run.folder.log(rank)), end - _KEPT_BYTES, begin + _KEPT_BYTES)
        return shipped

    def run_once(self) -> None:
        """Ship the new output of every log once. A finished run is shipped to its end and then dropped.

        Raises:
            Unreachable, NotJoined: the service is unavailable; the caller should call again.
        """
        with self._lock:
            over = set(self._over)
        for run in self._watched():
            final = run.folder.name in over
            redactor = self._secrets.redactor(run.folder.name, has_secrets=run.has_secrets)
            if redactor is None:
                self._keep_short(run)
                continue
            for rank in run.ranks:
                self._ship(run, rank, redactor, final=final)
            if final:
                run.folder.shipped.touch()
                self._secrets.forget(run.folder.name)
                with self._lock:
                    del self._runs[run.folder.name]
                    self._over.discard(run.folder.name)

    def _watched(self) -> Sequence[LoggedRun]:
        with self._lock:
            return list(self._runs.values())

    def _ship(self, run: LoggedRun, rank: int, redactor: Redactor, *, final: bool) -> None:
        path = run.folder.log(rank)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return
        # A line without an end is held back while it grows, and shipped once it stops growing.
        idle = self._sizes.get(path) == size
        self._sizes[path] = size
        shipped = ShippedOutput.from_json(read_json(run.folder.log_offset(rank))).at(self._now_s())
        shipped = self._discard_excess(run, rank, size, shipped)
        try:
            shipped = self._ship_on(run, rank, redactor, size, shipped, final=final, idle=idle)
        finally:
            self._save(run.folder.log_offset(rank))
        done = shipped.offset if shipped.gap is None else size
        self._holes.empty(str(path), done - _KEPT_BYTES)
        if final:
            self._sizes.pop(path, None)
            self._pieces.pop(path, None)
            self._pace_s.pop(path, None)
            self._holes.forget(str(path))

    def _ship_on(
        self,
        run: LoggedRun,
        rank: int,
        redactor: Redactor,
        size: int,
        shipped: ShippedOutput,
        *,
        final: bool,
        idle: bool,
    ) -> ShippedOutput:
        """Ship the due part of the first `size` bytes of a log. `idle` means no growth since the last call."""
        path = run.folder.log(rank)
        turn = size if final else shipped.offset + TURN_BYTES
        with path.open("rb") as file:
            if shipped.gap is not None and (final or shipped.in_hour < self._quota_bytes):
                shipped = self._end_gap(run, rank, file, size, shipped, final=final)
            while shipped.gap is None and shipped.offset < min(size, turn):
                if shipped.lost is not None and shipped.offset >= shipped.lost[0]:
                    shipped = self._skip_lost(run, rank, file, shipped, shipped.lost[1])
                    continue
                until = size if shipped.lost is None else shipped.lost[0]
                left = until - shipped.offset
                allowed = left if final and left <= LAST_WORDS_BYTES else self._quota_bytes - shipped.in_hour
                if allowed <= 0:
                    if left < _NOTICES_BYTES:
                        break  # too little for a notice: wait for more output, or for the next hour
                    shipped = self._begin_gap(run, rank, shipped)
                    if final:
                        shipped = self._end_gap(run, rank, file, size, shipped, final=True)
                    continue
                file.seek(shipped.offset)
                data = file.read(min(CHUNK_BYTES, allowed, left))
                end = shipped.offset + len(data)
                ends = len(data) == allowed < left or (end >= until and (final or idle or until < size))
                data = data[: cut(data, final=ends)]
                data = _hide(redactor, file, shipped.offset, data, final=final)
                if not data or not (final or self._may_ship(path, len(data))):
                    break
                shipped = self._post(run, rank, shipped, data)
        return shipped

    def _may_ship(self, path: Path, size_bytes: int) -> bool:
        """Return True if a piece may be shipped now. Small pieces are rate-limited by a token bucket."""
        now_s = self._now_s()
        pieces, at_s = self._pieces.get(path, (float(BURST), now_s))
        pieces = min(float(BURST), pieces + (now_s - at_s) / self._pace_s.get(path, PACE_S))
        may = pieces >= 1 or size_bytes >= CHUNK_BYTES // 2
        self._pieces[path] = (max(0.0, pieces - may), now_s)
        return may

    def _begin_gap(self, run: LoggedRun, rank: int, shipped: ShippedOutput) -> ShippedOutput:
        begun = shipped.offset
        notice = _FROM_HERE % (self._quota_bytes >> 20)
        return self._post(run, rank, replace(shipped, gap=begun), notice)

    def _end_gap(
        self, run: LoggedRun, rank: int, file: BinaryIO, size: int, shipped: ShippedOutput, *, final: bool
    ) -> ShippedOutput:
        """Continue with the newest line, or with the last lines if the run is over."""
        assert shipped.gap is not None
        earliest = shipped.gap + _NOTICES_BYTES
        from_ = max(earliest, size - LAST_WORDS_BYTES)
        file.seek(from_)
        lines = file.read(max(0, size - from_))
        begin = (lines.find(b"\n") if final else lines.rfind(b"\n", 0, -1)) + 1
        resumed = from_ + begin
        return self._resume(run, rank, shipped, shipped.gap, resumed)

    def _skip_lost(
        self, run: LoggedRun, rank: int, file: BinaryIO, shipped: ShippedOutput, end: int
    ) -> ShippedOutput:
        """Continue with the first line behind the discarded output."""
        file.seek(end)
        line_end = file.read(LAST_WORDS_BYTES).find(b"\n")
        return self._resume(run, rank, shipped, shipped.offset, end + line_end + 1)

    def _resume(
        self, run: LoggedRun, rank: int, shipped: ShippedOutput, gap: int, resumed: int
    ) -> ShippedOutput:
        """Ship a notice with the number of missing bytes from `gap` on, and continue at `resumed`."""
        if shipped.lost is not None:
            self._holes.forget(str(run.folder.log(rank)))  # the part before it was not freed
        within_line = b"\n" if shipped.gap is None else b""
        self._post(run, rank, shipped, within_line + _MISSING % (resumed - gap))
        after = replace(shipped, offset=resumed, gap=None, lost=None)
        self._unsaved[run.folder.log_offset(rank)] = after
        return after

    def _post(self, run: LoggedRun, rank: int, shipped: ShippedOutput, data: bytes) -> ShippedOutput:
        try:
            job_id, generation = run.folder.job_id, run.folder.generation
            followed = self._sink.ship_log(job_id, generation, rank, shipped.offset, data)
            self._pace_s[run.folder.log(rank)] = FOLLOWED_PACE_S if followed else PACE_S
        except Refused as error:
            _log.warning("the service refused a piece of a log", run=run.folder.name, error=str(error))
        shipped = replace(shipped, offset=shipped.offset + len(data), in_hour=shipped.in_hour + len(data))
        self._unsaved[run.folder.log_offset(rank)] = shipped
        return shipped

    def _save(self, path: Path) -> None:
        """Write the state, once for many pieces, because a disk that is busy with a rank's output delays each write.

        An agent that is killed before the write ships some pieces again; readers of the log see them once.
        """
        shipped = self._unsaved.pop(path, None)
        if shipped is not None:
            write_json(path, asdict(shipped))
