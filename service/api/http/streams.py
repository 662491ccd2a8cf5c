"""Streams of a job's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from headway.contract.views.jobs import TERMINAL_STATES
from service.api.http.context import ApiContext
from service.api.http.render import sse
from service.domain.shared.errors import Unavailable
from service.usecases.ports.facts import WakeUp

_LOOK_S = 2.0
"""Interval in seconds in which a stream polls by itself, in case a wake-up was lost."""
_BATCH = 500


async def follow_events(context: ApiContext, job_id: str, after: int) -> AsyncIterator[str]:
    """Yield the job's events after `after` as server-sent events, until the job has ended."""
    async with context.wake_ups.heard((WakeUp.EVENTS, job_id)) as woken:
        while True:
            woken.clear()
            try:
                async with context.transactions.begin() as tx:
                    ended = (await tx.job_queries.job(job_id)).state in TERMINAL_STATES
                    page = await tx.job_queries.events(job_id, after=after, limit=_BATCH)
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
                    await asyncio.wait_for(woken.wait(), _LOOK_S)
                yield ": still here\n\n"
