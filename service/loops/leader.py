"""Leader election among schedulers: one leads, and the others wait to take over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from service.cancellation import heed_cancellation
from service.domain.shared.errors import Superseded, Unavailable
from service.usecases.ports.transactions import Leadership

log = structlog.get_logger()

_TRY_AGAIN_S = 1.0


async def lead(leadership: Leadership, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work(term)` whenever this process is the leader, and stop it when the term ends.

    Run until cancelled.

    Work in progress at the end of a term is harmless: transactions of an older term are refused at their
    commit.
    """
    logged_waiting = False
    while True:
        try:
            term = await leadership.acquire()
        except Unavailable as error:
            heed_cancellation()
            log.warning("election_waits", reason=error.message)
            term = None
        if term is None:
            if not logged_waiting:
                log.info("waiting_to_lead")
                logged_waiting = True
            await asyncio.sleep(_TRY_AGAIN_S)
            continue
        log.info("leading", term=term)
        try:
            why = await _work_until_lost(leadership, work, term)
        finally:
            await leadership.resign()
        log.warning("leadership_lost", term=term, reason=why)
        logged_waiting = False


async def _work_until_lost(leadership: Leadership, work: Callable[[int], Awaitable[None]], term: int) -> str:
    """Run the work until the term ends. Return the reason for its end."""
    working = asyncio.ensure_future(work(term))
    lost = asyncio.ensure_future(leadership.lost())
    why = "its work has ended"
    try:
        await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            why = lost.result()
        else:
            working.result()
    except* Superseded as refused:
        why = _first(refused)
    finally:
        for task in (working, lost):
            task.cancel()
        await asyncio.gather(working, lost, return_exceptions=True)
    return why


def _first(refused: BaseExceptionGroup[Superseded]) -> str:
    error: BaseException = refused
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
