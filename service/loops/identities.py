"""Background work of a process that authenticates tokens."""

from __future__ import annotations

import asyncio

from service.loops.runner import Loop, run_loop
from service.usecases.identity.identify import Identities

_LONGEST_S = 3600.0
"""Maximum interval between purges of the token cache.

The cache needs none by time, since its entries expire.
"""
_WRITE_EVERY_S = 5.0


async def keep(identities: Identities, changed: asyncio.Event) -> None:
    """Purge the token cache whenever `changed` is set, and store token uses regularly, until cancelled."""

    async def forget() -> None:
        identities.forget()

    await asyncio.gather(
        run_loop(
            Loop(name="forget tokens", run_once=forget, min_interval_s=0.0, max_interval_s=_LONGEST_S),
            changed,
        ),
        run_loop(
            Loop(
                name="token uses",
                run_once=identities.write_uses,
                min_interval_s=_WRITE_EVERY_S,
                max_interval_s=_WRITE_EVERY_S,
            ),
            asyncio.Event(),
        ),
    )
