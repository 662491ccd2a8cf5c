"""Wait for something that is about to be true, with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 60.0) -> None:
    """Wait, a little at a time, until it holds. The end is for what hangs; it measures nothing.

    Raises:
        TimeoutError: it does not within `within_s`.
    """
    async with asyncio.timeout(within_s):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.01)
