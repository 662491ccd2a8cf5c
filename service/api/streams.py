"""Events and logs as pages, and as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from headway.contract.jobs import TERMINAL_STATES, LogChunk, Page
from service.api.context import ApiContext
from service.api.render import sse
from service.domain.errors import Unavailable
from service.usecases.logs import read_logs
from service.usecases.records import Bell

_LOOK_S = 2.0
"""A follower looks by itself this often, in case a bell was lost."""
_BATCH = 500
_LAST_LOOK_S = 0.5
"""After a job's end its last lines may still be on their way from the agents."""


async def follow_events(context: ApiContext, job_id: str, after: int) -> AsyncIterator[str]:
    """Server-sent events of the job from `after` on, until it has ended."""
    async with context.bells.heard((Bell.EVENTS, job_id)) as rung:
        while True:
            rung.clear()
            try:
                async with context.transactions.begin() as tx:
                    ended = (await tx.job_queries.job(job_id)).state in TERMINAL_STATES
                    page = await tx.history_queries.events(job_id, after=after, limit=_BATCH)
            except Unavailable:
                yield ": the database does not answer; still here\n\n"
                await asyncio.sleep(_LOOK_S)
                continue
            for event in page.items:
                after = event.sequence
                yield sse("event", event.model_dump_json(), str(event.sequence))
            if ended and page.next_cursor is None:
                yield sse("end")
                return
            if page.next_cursor is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), _LOOK_S)
                yield ": still here\n\n"


async def follow_logs(
    context: ApiContext, job_id: str, after: str | None, rank: int | None, tail: int | None
) -> AsyncIterator[str]:
    """Server-sent log chunks of the job, until it has ended and its last lines are out."""
    async with context.bells.heard((Bell.LOGS, job_id), (Bell.EVENTS, job_id)) as rung:
        if tail is not None and after is None:
            for chunk in (await log_page(context, job_id, None, rank, tail, _BATCH)).items:
                after = chunk.cursor
                yield sse("log", chunk.model_dump_json(), chunk.cursor)
        looks_after_end = 0
        while True:
            rung.clear()
            ended = await _has_ended(context, job_id)
            async for chunk in read_logs(context.storage, job_id, after=after, rank=rank):
                after = chunk.cursor
                yield sse("log", chunk.model_dump_json(), chunk.cursor)
            looks_after_end += ended
            if looks_after_end > 1:
                yield sse("end")
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(rung.wait(), _LAST_LOOK_S if ended else _LOOK_S)
            yield ": still here\n\n"


async def _has_ended(context: ApiContext, job_id: str) -> bool:
    with suppress(Unavailable):
        async with context.transactions.begin() as tx:
            return (await tx.job_queries.job(job_id)).state in TERMINAL_STATES
    return False


async def log_page(
    context: ApiContext, job_id: str, after: str | None, rank: int | None, tail: int | None, limit: int
) -> Page[LogChunk]:
    """A page of log chunks; with `tail`, those that hold the last so many lines."""
    chunks = read_logs(context.storage, job_id, after=after, rank=rank)
    if tail is not None:
        return Page(items=await _last_lines(chunks, tail))
    items: list[LogChunk] = []
    async for chunk in chunks:
        if len(items) == limit:
            return Page(items=items, next_cursor=items[-1].cursor)
        items.append(chunk)
    return Page(items=items)


async def _last_lines(chunks: AsyncIterator[LogChunk], lines: int) -> list[LogChunk]:
    kept: deque[LogChunk] = deque()
    count = 0
    async for chunk in chunks:
        kept.append(chunk)
        count += chunk.text.count("\n")
        while len(kept) > 1 and count - kept[0].text.count("\n") > lines:
            count -= kept.popleft().text.count("\n")
    if kept and count > lines:
        surplus = count - lines
        first = kept[0]
        kept[0] = first.model_copy(update={"text": first.text.split("\n", surplus)[-1]})
    return list(kept)
