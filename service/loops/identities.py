"""What a process that knows tokens does beside its requests."""

from __future__ import annotations

import asyncio

from service.loops.runner import Loop, run_loop
from service.usecases.identify import Identities

_LONGEST_S = 3600.0
"""Nothing needs to be forgotten by time: what is remembered ends by itself."""
_WRITE_EVERY_S = 5.0


async def keep(identities: Identities, changed: asyncio.Event) -> None:
    """Forget tokens whenever `changed` is set, and write down now and then which were used, until cancelled."""

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
