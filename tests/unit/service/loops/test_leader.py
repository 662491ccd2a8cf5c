"""`lead`: work runs as long as the term does, and a term that is over ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from service.domain.shared.errors import Superseded, Unavailable
from service.loops.leader import lead
from service.loops.runner import Loop, run_loop


class Throne:
    """Implements `Leadership`: whoever asks leads, in the next term, until the test takes it away."""

    def __init__(self, *refusals: Unavailable | None) -> None:
        self.refusals = list(refusals)
        self.term = 0
        self.resigned: list[int] = []
        self.taken = asyncio.Event()

    async def acquire(self) -> int | None:
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal is not None:
                raise refusal
            return None
        self.term += 1
        self.taken = asyncio.Event()
        return self.term

    async def lost(self) -> str:
        await self.taken.wait()
        return "it was taken away"

    async def resign(self) -> None:
        self.resigned.append(self.term)


async def leading(throne: Throne, work: Callable[[int], Awaitable[None]]) -> None:
    async with asyncio.timeout(60):
        await lead(throne, work)


async def test_work_is_stopped_before_the_next_term_begins() -> None:
    throne, said = Throne(), list[str]()

    async def work(term: int) -> None:
        said.append(f"{term} begins")
        if term == 2:
            raise ZeroDivisionError
        try:
            throne.taken.set()
            await asyncio.Event().wait()
        finally:
            said.append(f"{term} ends")

    with pytest.raises(ZeroDivisionError):
        await leading(throne, work)
    assert said == ["1 begins", "1 ends", "2 begins"]
    assert throne.resigned == [1, 2]


async def test_a_refused_commit_ends_the_term_and_nothing_else() -> None:
    throne, terms = Throne(), list[int]()

    async def late() -> None:
        raise Superseded("term 7 leads")

    async def work(term: int) -> None:
        terms.append(term)
        if term == 2:
            raise ZeroDivisionError
        loop = Loop(name="late", run_once=late, min_interval_s=0.0, max_interval_s=0.0)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(run_loop(loop, asyncio.Event()))

    with pytest.raises(ZeroDivisionError):
        await leading(throne, work)
    assert terms == [1, 2]
    assert throne.resigned == [1, 2]


async def test_it_asks_again_until_it_leads() -> None:
    throne = Throne(None, Unavailable("the database does not answer"))

    async def work(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await leading(throne, work)
    assert throne.refusals == []


async def test_a_scheduler_that_is_stopped_resigns() -> None:
    throne, begun = Throne(), asyncio.Event()

    async def work(_: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(leading(throne, work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert throne.resigned == [1]
