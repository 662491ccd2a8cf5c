"""One picture for all who look at the same page."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from service.console.html.fragments import Content, Fragment
from service.console.live_pages import LivePages
from service.domain.shared.errors import NotFound, Unavailable

NOW = datetime(2026, 11, 22, tzinfo=UTC)


class Source:
    """The value of a page, and a count of its reads."""

    def __init__(self) -> None:
        self.value: int | Exception = 1
        self.reads = 0

    async def read(self, key: str, memory: dict[str, Any]) -> list[Content]:
        self.reads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return [Fragment("number", "m", f"{key} {self.value}")]


def board_of(source: Source, clock_s: list[float]) -> LivePages[str]:
    return LivePages(source.read, lambda fragment: str(fragment.value), lambda: NOW, lambda: clock_s[0])


def parsed(event: str) -> tuple[str, Any]:
    lines = dict(line.split(": ", 1) for line in event.strip().splitlines())
    return lines["event"], json.loads(lines["data"])


async def test_a_hundred_who_look_at_once_cost_one_reading() -> None:
    source, clock_s = Source(), [100.0]
    live_pages = board_of(source, clock_s)
    versions = await asyncio.gather(*(live_pages.current("jobs") for _ in range(100)))
    assert {one.html("number") for one in versions} == {"jobs 1"}
    assert source.reads == 1
    clock_s[0] += 2
    source.value = 2
    assert (await live_pages.current("jobs")).html("number") == "jobs 2"
    assert (await live_pages.current("rounds")).html("number") == "rounds 2"


async def test_whoever_follows_gets_what_changed_and_then_hears_that_nothing_does() -> None:
    source, clock_s = Source(), [100.0]
    live_pages = board_of(source, clock_s)
    first = await live_pages.current("jobs")
    async with (
        aclosing(live_pages.follow("jobs", 0)) as late,
        aclosing(live_pages.follow("jobs", first.version)) as fresh,
    ):
        assert parsed(await anext(late)) == (
            "patch",
            {"at": "2026-11-22T00:00:00+00:00", "pieces": {"number": "jobs 1"}},
        )
        assert parsed(await anext(fresh))[0] == "beat"
        assert live_pages.viewers == 2
        source.value = 2
        clock_s[0] += 2
        await live_pages.current("jobs")
        assert parsed(await anext(late))[1]["pieces"] == {"number": "jobs 2"}
        assert parsed(await anext(fresh))[1]["pieces"] == {"number": "jobs 2"}
    assert live_pages.viewers == 0


async def test_trouble_is_said_to_whoever_looks() -> None:
    source, clock_s = Source(), [100.0]
    live_pages = board_of(source, clock_s)
    await live_pages.current("jobs")
    async with aclosing(live_pages.follow("jobs", 1)) as events:
        assert parsed(await anext(events))[0] == "beat"
        source.value = Unavailable("the database does not answer")
        clock_s[0] += 2
        with pytest.raises(Unavailable):
            await live_pages.current("jobs")
        assert parsed(await anext(events)) == ("stale", {"message": "the database does not answer"})
        source.value = NotFound("no job is called that")
        clock_s[0] += 2
        with pytest.raises(NotFound):
            await live_pages.current("jobs")
        assert parsed(await anext(events))[0] == "gone"
        with pytest.raises(StopAsyncIteration):
            await anext(events)
