"""The repetition of a unit of work, on time or when a wake-up arrives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from structlog.contextvars import bind_contextvars

from service.cancellation import heed_cancellation
from service.domain.shared.errors import HeadwayServiceError, Superseded

log = structlog.get_logger()

_LONGEST_BACKOFF_S = 30.0
LONGEST_REST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A unit of work with its schedule.

    `run_once` runs at most every `min_interval_s`, at least every `max_interval_s`, and sooner when woken.
    After each run, the loop rests for at least `rests` times the duration of the run, up to `LONGEST_REST_S`.
    Work that grows with the cluster therefore leaves processor time to others.
    """

    name: str
    run_once: Callable[[], Awaitable[object]]
    min_interval_s: float
    max_interval_s: float
    rests: float = 0.0


async def run_loop(loop: Loop, wake: asyncio.Event) -> None:
    """Run the loop until cancelled.

    An error delays the next run with exponential backoff and never ends the loop.

    Raises:
        Superseded: another process does this work now.
    """
    bind_contextvars(loop=loop.name)  # binds in this task only
    failures = 0
    clock_s = asyncio.get_running_loop().time
    while True:
        wake.clear()
        began_s = clock_s()
        try:
            await loop.run_once()
            failures = 0
        except Superseded:
            raise
        except HeadwayServiceError as error:
            failures += 1
            log.warning("loop_waits", reason=error.message)
        except Exception:
            failures += 1
            log.exception("loop_failed")
        heed_cancellation()
        if failures:
            backoff_s = min(0.5 * 2.0 ** min(failures, 10), _LONGEST_BACKOFF_S)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            continue
        rest_s = max(loop.min_interval_s, min(loop.rests * (clock_s() - began_s), LONGEST_REST_S))
        await asyncio.sleep(rest_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(wake.wait(), max(0.0, loop.max_interval_s - rest_s))
