"""Logs go from the agent to object storage, past every table.

A piece is one object: `logs/<job>/<received, microseconds>-<generation>-<rank>-<offset>`. Names are assigned on receipt and sort
by time, so one listing finds the pieces of all ranks in order. What of them a reader is shown is decided in `domain.logs`; here
they are listed and fetched, a few at a time, so that output of any length takes little memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Final

from headway.contract.jobs import LogChunk
from service.domain.errors import NotFound, Unavailable
from service.domain.logs import SETTLE_S, LogFilter, LogPiece, LogReading, Part
from service.usecases.outside_ports import Storage

TAIL_BYTES: Final = 2 << 20
"""The last lines are as many as were asked for, or what fits into this."""
_STORED_WITHIN_S: Final = 0.75 * SETTLE_S
_BATCH: Final = 1000
_AHEAD: Final = 6
"""Pieces that are fetched while earlier ones are shown; each has 1 MiB at most."""
_FIRST_LOOK_BACK_S: Final = 1800.0
_FURTHER: Final = 6.0


def log_prefix(job_id: str) -> str:
    """Under this prefix lie all pieces of a job."""
    return f"logs/{job_id}/"


def micros_of(moment: datetime) -> int:
    """Unix time in microseconds."""
    return int(moment.timestamp() * 1_000_000)


def received_at(key: str) -> datetime:
    """When the piece of a key was received."""
    micros = int(key.rpartition("/")[2].partition("-")[0])
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def missing_before(offset: int) -> str:
    """What is said in place of the beginning of a rank's output."""
    return f"[headway] The first {offset:,} bytes of what this rank wrote are not kept any more.\n"


def earlier_left_out(lines: int) -> str:
    """What is said where the last lines are too long to be shown."""
    return f"[headway] The last {lines:,} lines are more than {TAIL_BYTES >> 20} MiB: what is before here is left out.\n"


async def append_log(
    storage: Storage, job_id: str, *, generation: int, rank: int, offset: int, data: bytes, now: datetime
) -> None:
    """Store a piece. What was sent twice is stored twice and read once (by its offset).

    Raises:
        Unavailable: object storage does not answer, or takes so long that followers would miss the piece; send it again.
    """
    key = f"{log_prefix(job_id)}{micros_of(now):017d}-{generation:08d}-{rank:06d}-{offset:012d}"
    try:
        async with asyncio.timeout(_STORED_WITHIN_S):
            await storage.put(key, data)
    except TimeoutError:
        raise Unavailable(
            f"object storage took more than {_STORED_WITHIN_S:g} s for a piece of a log"
        ) from None


async def read_logs(storage: Storage, job_id: str, reading: LogReading) -> AsyncGenerator[LogChunk, None]:
    """What there is now and was not shown yet. What an agent left out, because it was too much, the output itself says.

    Raises:
        Unavailable: object storage does not answer. `reading` is of no more use then.
    """
    async for pieces in _batches(storage, job_id, reading.list_after):
        async with aclosing(_fetched(storage, job_id, reading.take(pieces))) as chunks:
            async for chunk in chunks:
                yield chunk


async def last_logs(
    storage: Storage,
    job_id: str,
    wanted: LogFilter,
    *,
    lines: int,
    began: datetime,
    now: datetime,
    since: datetime | None = None,
) -> tuple[list[LogChunk], LogReading]:
    """The last lines of what is wanted of a job that `began` then, and how to read on. Looks back only as far as it must, and
    never before `since`.

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
    storage: Storage, job_id: str, parts: Sequence[Part], lines: int
) -> tuple[list[LogChunk], bool]:
    """Chunks with the last lines of these parts, and whether there are that many or as much as may be."""
    kept: deque[LogChunk] = deque()
    count = size = 0
    for part in reversed(parts):
        chunk = await _chunk(storage, job_id, part)
        surplus = count + chunk.text.count("\n") - lines
        if surplus > 0:
            kept.appendleft(chunk.model_copy(update={"text": chunk.text.split("\n", surplus)[-1]}))
            return list(kept), True
        room = TAIL_BYTES - size
        if len(chunk.text) > room:
            text = earlier_left_out(lines) + chunk.text[len(chunk.text) - room :]
            kept.appendleft(chunk.model_copy(update={"text": text}))
            return list(kept), True
        kept.appendleft(chunk)
        count, size = count + chunk.text.count("\n"), size + len(chunk.text)
    return list(kept), False


async def _batches(storage: Storage, job_id: str, after: str) -> AsyncIterator[list[LogPiece]]:
    prefix = log_prefix(job_id)
    batch: list[LogPiece] = []
    async for stored in storage.entries(prefix, after=prefix + after):
        batch.append(LogPiece.of(stored.key.removeprefix(prefix), stored.size_bytes))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _fetched(storage: Storage, job_id: str, parts: Sequence[Part]) -> AsyncGenerator[LogChunk, None]:
    """The chunks of parts in their order; the next few are being fetched while one is used."""
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


async def _chunk(storage: Storage, job_id: str, part: Part) -> LogChunk:
    piece = part.piece
    try:
        data = await storage.get(log_prefix(job_id) + piece.name)
        text = data[part.skip :].decode(errors="replace")
    except NotFound:  # the oldest output is deleted while it is read
        text = f"[headway] {piece.size_bytes - part.skip:,} bytes are not kept any more.\n"
    return LogChunk(
        cursor=part.cursor,
        at=datetime.fromtimestamp(piece.received_us / 1_000_000, UTC),
        generation=piece.generation,
        rank=piece.rank,
        offset=piece.offset + part.skip,
        text=(missing_before(part.missing) if part.missing else "") + text,
    )
