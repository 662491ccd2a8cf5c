"""The one loop: how often it works, and how long it rests."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from service.domain.shared.errors import Unavailable
from service.loops.runner import Loop, run_loop

WORK_S = 0.02


async def begun_at(runs: int, **how: float) -> list[float]:
    """When each run began, of a loop that is woken all the time."""
    began: list[float] = []
    wake, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(WORK_S)  # the work itself
        wake.set()
        if len(began) == runs:
            done.set()

    intervals = {"min_interval_s": 0.0, "max_interval_s": 60.0, **how}
    running = asyncio.create_task(run_loop(Loop(name="works", run_once=work, **intervals), wake))
    await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return began


async def test_it_rests_as_many_times_as_long_as_its_work_took() -> None:
    began = await begun_at(4, rests=3.0)
    assert all(after - before > 3.9 * WORK_S for before, after in itertools.pairwise(began))


async def test_it_rests_for_its_least_interval_if_that_is_longer() -> None:
    first, second = await begun_at(2, rests=1.0, min_interval_s=5 * WORK_S)
    assert second - first > 5.9 * WORK_S


@pytest.mark.parametrize("error", [Unavailable("the database does not answer"), TimeoutError(), None])
async def test_it_ends_when_it_is_cancelled_whatever_its_work_makes_of_that(error: Exception | None) -> None:
    begun, runs = asyncio.Event(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None  # as a driver does that is cancelled while its server says nothing

    loop = Loop(name="works", run_once=work, min_interval_s=0.0, max_interval_s=0.0)
    running = asyncio.create_task(run_loop(loop, asyncio.Event()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert runs == 1
