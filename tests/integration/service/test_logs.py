"""The output of a job's ranks by the API: whose, from when on, page by page, and as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headway.contract.agents import FOLLOWED_HEADER, RunCommand
from headway.contract.views.jobs import JobState, LogChunk, Page
from service.api.http.context import ApiContext
from service.api.routes.jobs.log_streams import PAGE_BYTES, LogRequest, follow_logs
from service.domain.jobs.logs import LogFilter
from service.usecases.storage.log_writers import KNOWN_FOR_S
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings
from tests.integration.service.counting import statements
from tests.integration.service.test_life_of_a_job import start

LOGS = "/api/v1/jobs/job/logs"


async def ship(
    agent: Agent, run: RunCommand, data: bytes, *, rank: int = 0, offset: int = 0, token: str | None = None
) -> httpx.Response:
    path = f"/api/v1/agents/{agent.joined.node_id}/logs/{run.job_id}/{run.generation}/{rank}?offset={offset}"
    headers = {"Authorization": f"Bearer {token or agent.joined.node_token}"}
    return (await agent.client.post(path, content=data, headers=headers)).raise_for_status()


async def page(harness: Harness, **params: Any) -> Page[LogChunk]:
    response = await harness.client.get(LOGS, params=params)
    assert response.status_code == 200, response.text
    return Page[LogChunk].model_validate_json(response.content)


async def said(harness: Harness, **params: Any) -> str:
    return "".join(chunk.text for chunk in (await page(harness, **params)).items)


async def code(harness: Harness, **params: Any) -> tuple[int, str]:
    answer = await harness.client.get(LOGS, params=params)
    return answer.status_code, answer.json()["detail"]


async def test_a_log_is_read_by_rank_start_time_and_lines(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit(elastic={"min": 2, "max": 2})
    run = await start(harness, agent)
    assert (await page(harness)).items == []
    await ship(agent, run, b"first 0\n")
    await ship(agent, run, b"first 1\n", rank=1)
    await agent.report(
        entry("rank_exited", run, rank=0, signal=9), entry("rank_exited", run, rank=1, signal=9)
    )
    await agent.report(entry("released", run))
    again = await start(harness, agent)
    await ship(agent, again, b"second 0\n")
    await ship(agent, again, b"second 0\n")  # the answer was lost
    assert await said(harness) == "first 0\nfirst 1\nsecond 0\n"
    assert await said(harness, rank=0) == "first 0\nsecond 0\n"
    assert (
        await said(harness, attempt=1)
        == await said(harness, generation=run.generation)
        == "first 0\nfirst 1\n"
    )
    assert await said(harness, attempt=2, rank=0) == "second 0\n"
    assert await said(harness, attempt=2, rank=1) == ""
    assert await said(harness, rank=7) == ""
    assert await said(harness, tail=2) == "first 1\nsecond 0\n"
    assert await said(harness, tail=5, rank=1) == "first 1\n"
    (first, *_) = (await page(harness)).items
    assert await said(harness, since="10m") == "first 0\nfirst 1\nsecond 0\n"
    later = first.at + timedelta(microseconds=1)
    assert await said(harness, since=later.isoformat()) == "first 1\nsecond 0\n"
    assert await said(harness, since=later.replace(tzinfo=None).isoformat()) == "first 1\nsecond 0\n", "UTC"
    assert await said(harness, since=later.isoformat(), tail=10) == "first 1\nsecond 0\n"
    assert await said(harness, since="2999-01-01") == ""
    assert await code(harness, attempt=3) == (
        404,
        "attempt 3 of job job does not exist or was deleted; the job was started 2 times",
    )
    assert (await code(harness, attempt=1, generation=1))[0] == 422
    for since in ("yesterday", "2026-13-01", "-1", "9" * 60):
        status, detail = await code(harness, since=since)
        assert (status, "such as 10m or 2h" in detail) == (422, True), detail
    assert (await code(harness, cursor="x"))[0] == 422


async def test_a_page_is_bounded_by_its_bytes_and_pages_hold_everything(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    size, count = 200_000, 30
    for number in range(count):
        await ship(agent, run, b"%d" % (number % 10) * size, offset=number * size)
    read, cursor, pages = [], None, 0
    while True:
        found = await page(harness, **({"cursor": cursor} if cursor else {}))
        assert sum(len(chunk.text) for chunk in found.items) <= PAGE_BYTES
        read += [chunk.text for chunk in found.items]
        pages, cursor = pages + 1, found.next_cursor
        if cursor is None:
            break
    assert read == [str(number % 10) * size for number in range(count)]
    assert pages == count * size // PAGE_BYTES + 1


async def test_a_follower_hears_news_and_comes_back_without_a_gap(harness: Harness) -> None:
    agent = await harness.join()
    job = await harness.submit()
    run = await start(harness, agent)
    await ship(agent, run, b"a\nb\n")
    context = harness.client._transport.app.state.context  # type: ignore[attr-defined]
    assert isinstance(context, ApiContext)

    def wanted(cursor: str | None = None, tail: int | None = None) -> LogRequest:
        return LogRequest(job=job, filter=LogFilter(), cursor=cursor, since=None, tail=tail)

    async def next_of(stream: Any) -> LogChunk:
        async for text in stream:
            if text.startswith("id: "):
                return LogChunk.model_validate(json.loads(text.split("data: ")[1]))
        raise AssertionError("it has ended")

    async with asyncio.timeout(30):
        async with aclosing(follow_logs(context, wanted(tail=1))) as stream:  # type: ignore[type-var]
            assert (await next_of(stream)).text == "b\n"
            news = asyncio.create_task(next_of(stream))
            await ship(agent, run, b"c\n", offset=4)
            chunk = await news
            assert chunk.text == "c\n"
        await ship(agent, run, b"d\n", offset=6)
        async with aclosing(follow_logs(context, wanted(cursor=chunk.cursor))) as stream:  # type: ignore[type-var]
            assert (await next_of(stream)).text == "d\n"
        await agent.report(entry("rank_exited", run, rank=0, exit_code=0), entry("released", run))
        assert (await harness.job()).state is JobState.SUCCEEDED
        followed = await harness.client.get(LOGS, headers={"Accept": "text/event-stream"})
    events = [
        line.removeprefix("event: ") for line in followed.text.splitlines() if line.startswith("event: ")
    ]
    assert events == ["log", "log", "log", "end"]


async def test_agents_are_told_that_somebody_follows(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    assert FOLLOWED_HEADER not in (await ship(agent, run, b"one\n")).headers
    context: ApiContext = harness.client._transport.app.state.context  # type: ignore[attr-defined]
    job = await harness.job()
    wanted = LogRequest(job=job, filter=LogFilter(), cursor=None, since=None, tail=None)
    async with aclosing(follow_logs(context, wanted)) as events:
        assert "one" in await anext(events)
        assert FOLLOWED_HEADER in (await ship(agent, run, b"two\n", offset=4)).headers
    assert FOLLOWED_HEADER not in (await ship(agent, run, b"three\n", offset=8)).headers


async def test_following_goes_on_from_the_last_event(harness: Harness) -> None:
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    for number in range(3):
        await ship(agent, run, b"%d\n" % number, offset=2 * number)
    await agent.report(entry("rank_exited", run, rank=0, exit_code=0), entry("released", run))
    first, *_ = (await page(harness)).items
    headers = {"Accept": "text/event-stream", "Last-Event-ID": first.cursor}
    followed = await harness.client.get(LOGS, params={"tail": 1}, headers=headers)
    assert followed.text.count("event: log") == 2


@pytest_asyncio.fixture
async def skipping(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    """A service whose API skips time as well."""
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage")
    async with harness_of(settings, api_skips=True) as made:
        yield made


async def test_whose_log_it_is_is_asked_once_in_a_while(skipping: Harness) -> None:
    harness = skipping
    agent = await harness.join()
    await harness.submit()
    run = await start(harness, agent)
    await ship(agent, run, b"first\n")
    with statements(harness.service.database) as sent:
        await ship(agent, run, b"second\n", offset=6)
    assert not sent
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        await ship(agent, run, b"third\n", offset=13, token="another")
    harness.clock.skipped += timedelta(seconds=KNOWN_FOR_S)
    with statements(harness.service.database) as sent:
        await ship(agent, run, b"third\n", offset=13)
    assert len(sent) == 2
    assert await said(harness) == "first\nsecond\nthird\n"
