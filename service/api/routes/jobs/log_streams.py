"""Output of a job's ranks, as pages and as streams. Both hold only a few chunks in memory at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headway.contract.values.quantities import duration_s
from headway.contract.views.jobs import TERMINAL_STATES, JobView, LogChunk, Page
from service.api.http.context import ApiContext
from service.api.http.render import sse
from service.domain.jobs.logs import LogFilter, LogReading
from service.domain.shared.errors import InvalidField, NotFound, Unavailable
from service.usecases.ports.facts import WakeUp
from service.usecases.storage.logs import last_logs, micros_of, read_logs

PAGE_BYTES: Final = 1 << 20
"""Size at which a page ends, whatever its limit, because it is built in memory."""
_LOOK_S: Final = 5.0
"""Interval in seconds in which a stream polls by itself, in case a wake-up was lost."""
_LAST_LOOK_S: Final = 0.5
_QUIET_S: Final = 1.0
"""Quiet time in seconds after a job's end that ends its log. Agents can still send the last lines until then.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Request of a reader.

    `cursor` and `since` say where to begin. With `tail`, the output begins with that many of the last lines.
    The cursor has precedence.
    """

    job: JobView
    filter: LogFilter
    cursor: str | None
    since: datetime | None
    tail: int | None

    def reading(self) -> LogReading:
        """Return a reading position at the requested start."""
        since_us = micros_of(self.since) if self.since is not None and self.cursor is None else 0
        return LogReading(self.filter, cursor=self.cursor, since_us=since_us)


def since_of(text: str | None, now: datetime) -> datetime | None:
    """Return a moment from a time or a duration before now.

    A time without a zone is UTC. Raises InvalidField.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text) if "-" in text else None
        if moment is None:
            return max(now - timedelta(seconds=duration_s(text)), datetime.fromtimestamp(0, UTC))
    except (ValueError, OverflowError):
        message = "neither a duration such as 10m or 2h, nor a time such as 2026-03-10T12:00:00Z"
        raise InvalidField("since", message) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(moment, datetime.fromtimestamp(0, UTC))


async def filter_of(
    context: ApiContext, job: JobView, *, rank: int | None, generation: int | None, attempt: int | None
) -> LogFilter:
    """Return the filter for the requested output.

    An attempt is all generations from one start of the job to the next.

    Raises:
        InvalidField: both an attempt and a generation are given.
        NotFound: the attempt does not exist, or was deleted.
    """
    if attempt is None:
        return LogFilter(rank=rank, first=generation or 0, last=generation)
    if generation is not None:
        raise InvalidField("attempt", "give either an attempt or a generation")
    async with context.transactions.begin() as tx:
        starts = await tx.job_queries.starts(job.id)
    number = attempt - 1 - max(0, job.attempt - len(starts))  # the oldest attempts may be deleted
    if not 0 <= number < len(starts):
        raise NotFound(
            f"attempt {attempt} of job {job.name} does not exist or was deleted; the job was started {job.attempt} times"
        )
    last = starts[number + 1] - 1 if number + 1 < len(starts) else None
    return LogFilter(rank=rank, first=starts[number], last=last)


async def log_page(context: ApiContext, wanted: LogRequest, limit: int) -> Page[LogChunk]:
    """Return a page of log chunks; with `tail`, the chunks that contain the last lines."""
    if wanted.tail is not None and wanted.cursor is None:
        return Page(items=(await _last_chunks(context, wanted, wanted.tail))[0])
    items: list[LogChunk] = []
    size = 0
    async with aclosing(read_logs(context.storage, wanted.job.id, wanted.reading())) as chunks:
        async for chunk in chunks:
            if items and (len(items) == limit or size + len(chunk.text) > PAGE_BYTES):
                return Page(items=items, next_cursor=items[-1].cursor)
            items.append(chunk)
            size += len(chunk.text)
    return Page(items=items)


async def follow_logs(context: ApiContext, wanted: LogRequest) -> AsyncIterator[str]:
    """Yield the job's log chunks as server-sent events, until it has ended and its last lines were sent."""
    job_id, clock_s = wanted.job.id, asyncio.get_running_loop().time
    try:
        async with context.wake_ups.heard((WakeUp.LOGS, job_id), (WakeUp.EVENTS, job_id)) as woken:
            reading = wanted.reading()
            if wanted.tail is not None and wanted.cursor is None:
                recent, reading = await _last_chunks(context, wanted, wanted.tail)
                for chunk in recent:
                    yield _event(chunk)
            quiet_since_s: float | None = None
            while True:
                woken.clear()
                ended = await _has_ended(context, job_id)
                async with aclosing(read_logs(context.storage, job_id, reading)) as chunks:
                    async for chunk in chunks:
                        quiet_since_s = None
                        yield _event(chunk)
                if ended:
                    quiet_since_s = clock_s() if quiet_since_s is None else quiet_since_s
                    if clock_s() - quiet_since_s >= _QUIET_S:
                        yield sse("end")
                        return
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _LAST_LOOK_S if ended else _LOOK_S)
                yield ": still here\n\n"
    except Unavailable:
        # The client reconnects with its last position.
        yield ": object storage does not answer\n\n"


def _event(chunk: LogChunk) -> str:
    return sse("log", chunk.model_dump_json(), chunk.cursor)


async def _has_ended(context: ApiContext, job_id: str) -> bool:
    with suppress(Unavailable):
        async with context.transactions.begin() as tx:
            return (await tx.job_queries.job(job_id)).state in TERMINAL_STATES
    return False


async def _last_chunks(
    context: ApiContext, wanted: LogRequest, lines: int
) -> tuple[list[LogChunk], LogReading]:
    return await last_logs(
        context.storage,
        wanted.job.id,
        wanted.filter,
        lines=lines,
        began=wanted.job.submitted_at,
        now=context.now(),
        since=wanted.since,
    )
