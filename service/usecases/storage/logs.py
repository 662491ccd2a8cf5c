"""Logs, which agents send to object storage without any table.

A piece is one object: `logs/<job>/<received, microseconds>-<generation>-<rank>-<offset>`, with the generation and
rank of the start of its process, and `-<present rank>` behind if the process had another rank by then. The service
assigns the name on receipt. Names sort by time, so one listing yields the pieces of all ranks in order.
`service.domain.jobs.logs` selects what a reader is shown. This module lists and fetches pieces, a few at a
time, so memory does not grow with the output.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Final

from headway.contract.views.jobs import LogChunk
from headway.redrawn import ReversedStates
from service.domain.jobs.logs import SETTLE_S, LogFilter, LogPiece, LogReading, Part
from service.domain.shared.errors import NotFound, Unavailable
from service.usecases.ports.storage import StoredObjects

TAIL_BYTES: Final = 2 << 20
"""Maximum size of the last lines of a log. Lines beyond it are left out."""
_TAIL_READ_BYTES: Final = 16 << 20
"""Maximum output read for the last lines. It is more than is shown if lines were redrawn."""
_STORED_WITHIN_S: Final = 0.75 * SETTLE_S
_BATCH: Final = 1000
_AHEAD: Final = 6
"""Number of pieces fetched ahead of the one being shown. Each has at most 1 MiB."""
_FIRST_LOOK_BACK_S: Final = 1800.0
_FURTHER: Final = 6.0


def log_prefix(job_id: str) -> str:
    """Return the prefix of all pieces of a job's logs."""
    return f"logs/{job_id}/"


def micros_of(moment: datetime) -> int:
    """Return the Unix time of a moment in microseconds."""
    return int(moment.timestamp() * 1_000_000)


def received_at(key: str) -> datetime:
    """Return the moment at which the piece of a key was received."""
    micros = int(key.rpartition("/")[2].partition("-")[0])
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def missing_before(offset: int) -> str:
    """Return the text that replaces the deleted beginning of a rank's output."""
    return f"[headway] The first {offset:,} bytes of what this rank wrote are not kept any more.\n"


def earlier_left_out(lines: int) -> str:
    """Return the text that replaces last lines beyond the size limit."""
    return f"[headway] The last {lines:,} lines are more than {TAIL_BYTES >> 20} MiB: what is before here is left out.\n"


async def append_log(
    storage: StoredObjects,
    job_id: str,
    *,
    generation: int,
    rank: int,
    offset: int,
    present_rank: int | None = None,
    data: bytes,
    now: datetime,
) -> None:
    """Store a piece of a log.

    A piece that is sent twice is stored twice, and read once because of its offset.

    Raises:
        Unavailable: object storage does not answer, or takes so long that followers would miss the piece;
            send it again.
    """
    key = f"{log_prefix(job_id)}{micros_of(now):017d}-{generation:08d}-{rank:06d}-{offset:012d}"
    if present_rank not in {None, rank}:
        key += f"-{present_rank:06d}"
    try:
        async with asyncio.timeout(_STORED_WITHIN_S):
            await storage.put(key, data)
    except TimeoutError:
        raise Unavailable(
            f"object storage took more than {_STORED_WITHIN_S:g} s for a piece of a log"
        ) from None


async def read_logs(
    storage: StoredObjects, job_id: str, reading: LogReading
) -> AsyncGenerator[LogChunk, None]:
    """Yield the output that exists now and was not shown yet.

    Output that an agent omitted is marked in the text itself.

    Raises:
        Unavailable: object storage does not answer. `reading` cannot be used any more.
    """
    async for pieces in _batches(storage, job_id, reading.list_after):
        async with aclosing(_fetched(storage, job_id, reading.take(pieces))) as chunks:
            async for chunk in chunks:
                yield chunk


async def last_logs(
    storage: StoredObjects,
    job_id: str,
    wanted: LogFilter,
    *,
    lines: int,
    began: datetime,
    now: datetime,
    since: datetime | None = None,
) -> tuple[list[LogChunk], LogReading]:
    """Return the last lines of a job that started at `began`, and the state for reading on.

    The search looks back only as far as necessary, and never before `since`.

    Raises:
        Unavailable: object storage does not answer.
    """
    look_back_s = _FIRST_LOOK_BACK_S
    first_us = micros_of(since or began)
    from_us = first_us if since is not None else 0
    while True:
        since_us = micros_of(now) - int(look_back_s * 1_000_000)
        whole = since_us <= first_us
        reading = LogReading(wanted, since_us=from_us if whole else since_us)
        parts: list[Part] = []
        async for pieces in _batches(storage, job_id, reading.list_after):
            parts += reading.take(pieces)
        chunks, enough = await _last_lines(storage, job_id, parts, lines)
        if enough or whole:
            return chunks, reading
        look_back_s *= _FURTHER


async def _last_lines(
    storage: StoredObjects, job_id: str, parts: Sequence[Part], lines: int
) -> tuple[list[LogChunk], bool]:
    """Return chunks with the last lines of these parts. Of a line that was redrawn, it is the last state.

    The flag says that the lines or a size limit were reached.
    """
    kept: deque[LogChunk] = deque()
    states = ReversedStates()
    count = size = read = 0
    for part in reversed(parts):
        stored = await _chunk(storage, job_id, part)
        text = states.before(part.piece.stream, stored.text)
        read += len(stored.text)
        surplus = count + text.count("\n") - lines
        room = TAIL_BYTES - size
        is_too_much = len(text) > room or read > _TAIL_READ_BYTES
        if surplus > 0:
            text = text.split("\n", surplus)[-1]
        elif is_too_much:
            text = earlier_left_out(lines) + text[max(0, len(text) - room) :]
        if text or not kept:
            kept.appendleft(stored.model_copy(update={"text": text}))
        if surplus > 0 or is_too_much:
            return list(kept), True
        count, size = count + text.count("\n"), size + len(text)
    return list(kept), False


async def _batches(storage: StoredObjects, job_id: str, after: str) -> AsyncIterator[list[LogPiece]]:
    prefix = log_prefix(job_id)
    batch: list[LogPiece] = []
    async for stored in storage.entries(prefix, after=prefix + after):
        batch.append(LogPiece.of(stored.key.removeprefix(prefix), stored.size_bytes))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _fetched(
    storage: StoredObjects, job_id: str, parts: Sequence[Part]
) -> AsyncGenerator[LogChunk, None]:
    """Yield the chunks of parts in order. The next few are fetched while one is used."""
    fetching: deque[asyncio.Task[LogChunk]] = deque()
    waiting = iter(parts)
    try:
        while True:
            while len(fetching) < _AHEAD and (part := next(waiting, None)) is not None:
                fetching.append(asyncio.create_task(_chunk(storage, job_id, part)))
            if not fetching:
                return
            yield await fetching[0]
            fetching.popleft()
    finally:
        for task in fetching:
            task.cancel()
        for task in fetching:
            with suppress(asyncio.CancelledError, Unavailable):
                await task


async def _chunk(storage: StoredObjects, job_id: str, part: Part) -> LogChunk:
    piece = part.piece
    try:
        data = await storage.get(log_prefix(job_id) + piece.name)
        text = data[part.skip :].decode(errors="replace")
    except NotFound:  # the oldest output may be deleted while it is read
        text = f"[headway] {piece.size_bytes - part.skip:,} bytes are not kept any more.\n"
    return LogChunk(
        cursor=part.cursor,
        at=datetime.fromtimestamp(piece.received_us / 1_000_000, UTC),
        generation=piece.generation,
        rank=piece.rank,
        present_rank=piece.present_rank,
        offset=piece.offset + part.skip,
        text=(missing_before(part.missing) if part.missing else "") + text,
    )
