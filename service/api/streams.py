"""Events as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from headway.contract.jobs import TERMINAL_STATES
from service.api.context import ApiContext
from service.api.render import sse
from service.domain.errors import Unavailable
from service.usecases.records import Bell

_LOOK_S = 2.0
"""A follower looks by itself this often, in case a bell was lost."""
_BATCH = 500


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
