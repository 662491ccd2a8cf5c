"""Shipping of rank output to the service. Ranks write to files, and never wait for the shipper."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Protocol

import structlog

from headway.contract.renumbering import ranks_file
from headway.contract.values.redaction import SHORTEST_BYTES
from worker_agent.host.folders import LoggedRun, RunFolder, boot_s, read_json, write_json
from worker_agent.link.redaction import Redactor, masked
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Backoff, NotJoined, Refused, Unreachable
from worker_agent.logs.pieces import CHUNK_BYTES, KEPT_BYTES, cut, from_character
from worker_agent.logs.present_ranks import PresentRanks
from worker_agent.logs.punch_hole import Holes

_log = structlog.get_logger()

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

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> bool:
        """Store a piece at its offset, and return True if a client follows the output.

        `generation` and `rank` are those of the start of the process; it had `present_rank` when it wrote the piece.
        """
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedOutput:
    """Shipping state of the output of a rank, stored as JSON.

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


class _RankLog:
    """Log of one rank, and what of it was shipped."""

    def __init__(
        self,
        folder: RunFolder,
        rank: int,
        *,
        sink: LogSink,
        quota_bytes: int,
        now_s: Callable[[], float],
        holes: Holes,
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._path = folder.log(rank)
        self._ranks = PresentRanks(folder.control / ranks_file(rank), self._path, rank)
        self._sink = sink
        self._quota_bytes = quota_bytes
        self._now_s = now_s
        self._holes = holes
        self._shipped = ShippedOutput.from_json(read_json(folder.log_offset(rank)))
        self._is_saved = True
        self._last_size: int | None = None
        self._tokens, self._tokens_at_s = float(BURST), now_s()
        """Tokens for small pieces, with the time of the last update."""
        self._pace_s = PACE_S

    def ship(self, redactor: Redactor, *, final: bool) -> None:
        """Ship the output that is due. With `final`, no process writes to the log any more.

        Raises:
            Unreachable, NotJoined: the service is unavailable; the caller should call again.
        """
        size = self.discard_excess()
        if size is None:
            return
        self._ranks.update(size)  # after the size: a rank notes its change before it writes on
        # A line without an end is held back while it grows, and shipped once it stops growing.
        idle = self._last_size == size
        self._last_size = size
        # A clock before `since_s` belongs to another boot, so a new hour begins.
        if not 0 <= self._now_s() - self._shipped.since_s < QUOTA_S:
            self._shipped = replace(self._shipped, in_hour=0)
        try:
            self._ship_due(redactor, size, final=final, idle=idle)
        finally:
            self._save()
        done = self._shipped.offset if self._shipped.gap is None else size
        self._holes.empty(str(self._path), done - KEPT_BYTES)
        if final:
            self._holes.forget(str(self._path))

    def discard_excess(self) -> int | None:
        """Discard output beyond the quota that is not shipped yet. Return the size of the log, or None without one.

        A MiB is kept on both sides of the gap, because the secrets at its edges are detected with it.
        """
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return None
        shipped = self._shipped
        begin = shipped.offset + self._quota_bytes if shipped.lost is None else shipped.lost[0]
        end = size - 2 * KEPT_BYTES
        if shipped.gap is not None or end - begin < self._quota_bytes // 4:
            return size
        if shipped.lost is None or end - shipped.lost[1] >= self._quota_bytes // 4:
            self._update(lost=(begin, end))
            self._save()  # before its bytes are freed
            self._holes.empty(str(self._path), end - KEPT_BYTES, begin + KEPT_BYTES)
        return size

    def _ship_due(self, redactor: Redactor, size: int, *, final: bool, idle: bool) -> None:
        """Ship the due part of the first `size` bytes. `idle` means no growth since the last call."""
        turn = size if final else self._shipped.offset + TURN_BYTES
        with self._path.open("rb") as file:
            if self._shipped.gap is not None and (final or self._shipped.in_hour < self._quota_bytes):
                self._end_gap(file, size, final=final)
            while self._shipped.gap is None and self._shipped.offset < min(size, turn):
                offset, lost = self._shipped.offset, self._shipped.lost
                if lost is not None and offset >= lost[0]:
                    self._skip_lost(file, lost[1])
                    continue
                until = size if lost is None else lost[0]
                left = until - offset
                within_quota = self._quota_bytes - self._shipped.in_hour
                allowed = left if final and left <= LAST_WORDS_BYTES else within_quota
                file.seek(offset)
                data = file.read(max(0, min(CHUNK_BYTES, allowed, left)))
                end = offset + len(data)
                before_gap = len(data) >= allowed < left or (end >= until and until < size)
                pauses = before_gap or (end >= until and idle)
                data = data[: cut(data, idle=pauses, final=final and end >= size)]
                if not data and before_gap:  # perhaps the beginning of a character, whose end is left out
                    if lost is not None and end >= lost[0]:
                        self._skip_lost(file, lost[1])
                        continue
                    if left < _NOTICES_BYTES:
                        break  # too little for a notice: wait for more output, or for the next hour
                    self._begin_gap()
                    if final:
                        self._end_gap(file, size, final=True)
                    continue
                data = _hide(redactor, file, offset, data, final=final)
                if not data or not (final or self._may_ship(len(data))):
                    break
                for begin, end, rank in self._parts(offset, offset + len(data)):
                    self._post(data[begin - offset : end - offset], rank)

    def _may_ship(self, size_bytes: int) -> bool:
        """Return True if a piece may be shipped now. Small pieces are rate-limited by a token bucket."""
        now_s = self._now_s()
        tokens = min(float(BURST), self._tokens + (now_s - self._tokens_at_s) / self._pace_s)
        may = tokens >= 1 or size_bytes >= CHUNK_BYTES // 2
        self._tokens, self._tokens_at_s = max(min(0.0, tokens), tokens - may), now_s
        return may

    def _parts(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Return the parts of a piece with the rank of each. Each is a piece of its own, so it takes a token, if need be one
        of the future; a job that claims more changes than that gets the rest under its last rank.
        """
        parts = self._ranks.parts(begin, end)
        most = 1 + max(0, int(self._tokens + BURST))
        if len(parts) > most:
            parts[most - 1 :] = [(parts[most - 1][0], end, parts[-1][2])]
        self._tokens -= len(parts) - 1
        return parts

    def _begin_gap(self) -> None:
        begin = self._shipped.offset
        self._post(_FROM_HERE % (self._quota_bytes >> 20), self._ranks.at(begin))
        self._update(gap=begin)

    def _end_gap(self, file: BinaryIO, size: int, *, final: bool) -> None:
        """Continue with the newest line, or with the last lines if the run is over."""
        assert self._shipped.gap is not None
        earliest = max(self._shipped.gap + _NOTICES_BYTES, size - LAST_WORDS_BYTES)
        file.seek(earliest)
        lines = file.read(max(0, size - earliest))
        begin = (lines.find(b"\n") if final else lines.rfind(b"\n", 0, -1)) + 1
        self._resume(self._shipped.gap, earliest + (begin or from_character(lines)))

    def _skip_lost(self, file: BinaryIO, end: int) -> None:
        """Continue with the first line behind the discarded output."""
        file.seek(end)
        lines = file.read(LAST_WORDS_BYTES)
        begin = lines.find(b"\n") + 1 or from_character(lines)
        self._resume(self._shipped.offset, end + begin)

    def _resume(self, gap: int, resumed: int) -> None:
        """Ship a notice with the number of missing bytes from `gap` on, and continue at `resumed`."""
        before = self._shipped
        if before.lost is not None:
            self._holes.forget(str(self._path))  # the part before it was not freed
        within_line = b"\n" if before.gap is None else b""
        self._post(within_line + _MISSING % (resumed - gap), self._ranks.at(resumed))
        self._update(offset=resumed, in_hour=before.in_hour, gap=None, lost=None)

    def _post(self, data: bytes, present_rank: int) -> None:
        shipped = self._shipped
        try:
            followed = self._sink.ship_log(
                self._folder.job_id,
                self._folder.generation,
                self._rank,
                shipped.offset,
                data,
                present_rank=present_rank,
            )
            self._pace_s = FOLLOWED_PACE_S if followed else PACE_S
        except Refused as error:
            _log.warning("the service refused a piece of a log", run=self._folder.name, error=str(error))
        since_s = shipped.since_s if shipped.in_hour else self._now_s()
        self._update(offset=shipped.offset + len(data), in_hour=shipped.in_hour + len(data), since_s=since_s)

    def _update(self, **changes: Any) -> None:
        self._shipped = replace(self._shipped, **changes)
        self._is_saved = False

    def _save(self) -> None:
        """Write the state, once for many pieces, because a disk that is busy with a rank's output delays each write.

        An agent that is killed before the write ships some pieces again; readers of the log see them once.
        """
        if not self._is_saved:
            write_json(self._folder.log_offset(self._rank), asdict(self._shipped))
            self._is_saved = True


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
        self._secrets = secrets or RunSecrets()
        self._stopping = stopping
        self._new_log = partial(
            _RankLog, sink=sink, quota_bytes=quota_bytes, now_s=now_s, holes=holes or Holes()
        )
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[LoggedRun, list[_RankLog]]] = {}
        self._over: set[str] = set()
        self._woken = threading.Event()
        self._backoff = Backoff(random.Random())

    def watch(self, run: LoggedRun) -> None:
        """Ship the logs of this run from now on."""
        logs = [self._new_log(run.folder, rank) for rank in run.ranks]
        with self._lock:
            self._runs[run.folder.name] = run, logs
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
        for _, logs in self._watched():
            for log in logs:
                log.discard_excess()

    def _wait_for_service(self, wait_s: float) -> None:
        while wait_s > 0:
            self.keep_short()
            self._stopping.wait(min(wait_s, _LOOK_S))
            wait_s -= _LOOK_S

    def run_once(self) -> None:
        """Ship the new output of every log once. A finished run is shipped to its end and then dropped.

        Raises:
            Unreachable, NotJoined: the service is unavailable; the caller should call again.
        """
        with self._lock:
            over = set(self._over)
        for run, logs in self._watched():
            final = run.folder.name in over
            redactor = self._secrets.redactor(run.folder.name, has_secrets=run.has_secrets)
            for log in logs:
                if redactor is None:
                    log.discard_excess()
                else:
                    log.ship(redactor, final=final)
            if final and redactor is not None:
                run.folder.shipped.touch()
                self._secrets.forget(run.folder.name)
                with self._lock:
                    del self._runs[run.folder.name]
                    self._over.discard(run.folder.name)

    def _watched(self) -> Sequence[tuple[LoggedRun, list[_RankLog]]]:
        with self._lock:
            return list(self._runs.values())
