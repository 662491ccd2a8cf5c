"""One leader among the schedulers; the others wait to take over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog

from service.domain.errors import Unavailable

log = structlog.get_logger()

_TRY_AGAIN_S = 2.0


class Leadership(Protocol):
    """The lock that only one scheduler holds."""

    async def acquire(self) -> bool:
        """Whether this process is the leader now. Raises Unavailable."""
        ...

    async def lost(self) -> None:
        """Returns when the lock is lost."""
        ...


async def lead(leadership: Leadership, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` whenever this process is the leader; stop it as soon as it is not. Until cancelled.

    A round that was under way when the lock was lost is harmless: what it writes is guarded by
    generations.
    """
    waiting_told = False
    while True:
        try:
            leader = await leadership.acquire()
        except Unavailable as error:
            log.warning("election_waits", reason=error.message)
            leader = False
        if not leader:
            if not waiting_told:
                log.info("waiting_to_lead")
                waiting_told = True
            await asyncio.sleep(_TRY_AGAIN_S)
            continue
        log.info("leading")
        working = asyncio.ensure_future(work())
        lost = asyncio.ensure_future(leadership.lost())
        try:
            await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, lost):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        log.warning("leadership_lost")
        waiting_told = False
