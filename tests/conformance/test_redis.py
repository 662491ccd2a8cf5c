"""`CommandQueue` and the wake-ups on a real Redis, and without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from headway.contract.agents import COMMAND_FIELD
from headway.local.redis import EmbeddedRedis
from service.adapters.redis import RedisCommandQueue, RedisWakeUps, connect, stream_of
from service.domain.shared.errors import Unavailable
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.rounds import Delivery, PendingCommand
from tests.waiting import until

WITHIN_S = 60.0


@pytest_asyncio.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(redis_url)
    yield made
    await made.aclose()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A server that the test may stop."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server


def command(number: int, node: str = "n1") -> PendingCommand:
    return PendingCommand(f"c{number}", node, json.dumps({"number": number, "text": "ünïcode"}))


def delivery(number: int) -> Delivery:
    return Delivery(number, datetime(2026, 3, 10, 12, tzinfo=UTC) + timedelta(seconds=number))


async def bodies(client: Redis, node: str) -> list[int]:
    entries = await client.xrange(stream_of(node))
    return [json.loads(fields[COMMAND_FIELD.encode()])["number"] for _, fields in entries]


async def test_commands_reach_their_nodes_stream_in_order(client: Redis) -> None:
    queue = RedisCommandQueue(client)
    assert await queue.push([command(1), command(2, "n2"), command(3)], delivery(1))
    assert await queue.push([command(4)], delivery(2))
    assert await bodies(client, "n1") == [1, 3, 4]
    assert await bodies(client, "n2") == [2]
    assert await bodies(client, "n3") == []


async def test_push_without_commands_remembers_the_delivery(client: Redis) -> None:
    queue = RedisCommandQueue(client)
    assert await queue.latest() is None
    assert await queue.push([], delivery(7))
    assert await queue.latest() == delivery(7)


@pytest.mark.parametrize("number", [6, 7])
async def test_push_of_a_delivery_that_is_not_later_appends_nothing(client: Redis, number: int) -> None:
    queue = RedisCommandQueue(client)
    await queue.push([command(1)], delivery(7))
    assert not await queue.push([command(2)], delivery(number))
    assert await queue.latest() == delivery(7)
    assert await bodies(client, "n1") == [1]
    assert await queue.push([command(3)], delivery(8))
    assert await bodies(client, "n1") == [1, 3]


async def test_empty_drops_all_commands_and_refuses_late_deliveries(client: Redis) -> None:
    queue = RedisCommandQueue(client)
    await queue.push([command(1), command(2, "n2")], delivery(7))
    number = await queue.empty(7)
    assert number is not None
    assert await bodies(client, "n1") == await bodies(client, "n2") == []
    assert not await queue.push([command(3)], delivery(8))
    assert await queue.push([command(4)], delivery(number + 1))
    assert await bodies(client, "n1") == [4]


async def test_empty_after_another_delivery_changes_nothing(client: Redis) -> None:
    queue = RedisCommandQueue(client)
    await queue.push([command(1)], delivery(8))
    assert await queue.empty(7) is None
    assert await bodies(client, "n1") == [1]
    assert await queue.push([], delivery(9))


async def test_empty_of_a_queue_that_saw_no_delivery_skips_numbers(client: Redis) -> None:
    number = await RedisCommandQueue(client).empty()
    assert number is not None
    assert number > 0


async def test_the_stream_of_a_node_that_is_away_is_bounded(client: Redis) -> None:
    queue = RedisCommandQueue(client)
    for start in range(0, 12_000, 2_000):
        await queue.push([command(number) for number in range(start, start + 2_000)], delivery(start + 1))
    kept = await bodies(client, "n1")
    assert len(kept) < 11_000
    assert kept[-1] == 11_999
    assert 0 < await client.ttl(stream_of("n1")) <= 86_400, "and goes when the node never comes back"


async def test_without_redis_a_push_says_that_it_waits(own_redis: EmbeddedRedis) -> None:
    client = connect(own_redis.url())
    queue = RedisCommandQueue(client)
    await queue.push([command(1)], delivery(1))
    own_redis.stop()
    for _ in range(2):
        with pytest.raises(Unavailable, match="Redis does not answer"):
            await asyncio.wait_for(queue.push([command(2)], delivery(2)), WITHIN_S)
    own_redis.start()
    await queue.push([command(3)], delivery(3))
    assert await bodies(client, "n1") == [3], "Redis keeps nothing; the outbox pushes again"
    await client.aclose()


async def connected(wake_ups: RedisWakeUps, others: RedisWakeUps) -> None:
    """Wait until a ring of the one is heard by the other."""

    async def heard_once() -> bool:
        async with others.heard((WakeUp.LOGS, "probe")) as event:
            await wake_ups.wake(WakeUp.LOGS, "probe")
            try:
                await asyncio.wait_for(event.wait(), 0.2)
            except TimeoutError:
                return False
            return True

    await until(heard_once, WITHIN_S)


@pytest_asyncio.fixture
async def two(redis_url: str) -> AsyncIterator[tuple[RedisWakeUps, RedisWakeUps]]:
    """The wake-ups of two processes that hear one another."""
    async with AsyncExitStack() as stack:
        pair = []
        for _ in range(2):
            client = connect(redis_url)
            stack.push_async_callback(client.aclose)
            pair.append(await stack.enter_async_context(RedisWakeUps(client).running()))
        here, there = pair
        await connected(here, there)
        await connected(there, here)
        yield here, there


async def test_a_ring_wakes_hearers_of_every_process(two: tuple[RedisWakeUps, RedisWakeUps]) -> None:
    here, there = two
    async with here.heard((WakeUp.ROUND, "")) as mine, there.heard((WakeUp.ROUND, "")) as theirs:
        await here.wake(WakeUp.ROUND)
        await asyncio.wait_for(asyncio.gather(mine.wait(), theirs.wait()), WITHIN_S)


async def test_only_those_who_listen_for_it_are_woken(two: tuple[RedisWakeUps, RedisWakeUps]) -> None:
    here, there = two
    async with AsyncExitStack() as stack:
        other_job = await stack.enter_async_context(there.heard((WakeUp.EVENTS, "j2")))
        other_wake_up = await stack.enter_async_context(there.heard((WakeUp.LOGS, "j1")))
        both = await stack.enter_async_context(there.heard((WakeUp.LOGS, "j2"), (WakeUp.EVENTS, "j1")))
        await here.wake(WakeUp.EVENTS, "j1")
        await asyncio.wait_for(both.wait(), WITHIN_S)
        assert not other_job.is_set()
        assert not other_wake_up.is_set()


async def test_a_hearer_is_woken_again_and_again(two: tuple[RedisWakeUps, RedisWakeUps]) -> None:
    here, there = two
    async with there.heard((WakeUp.COMMANDS, "")) as event:
        for _ in range(3):
            await here.wake(WakeUp.COMMANDS)
            await asyncio.wait_for(event.wait(), WITHIN_S)
            event.clear()


async def test_many_rings_are_sent_as_one(redis_url: str, two: tuple[RedisWakeUps, RedisWakeUps]) -> None:
    here, _ = two
    async with connect(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as everything:
        await everything.psubscribe("*")
        for _ in range(1000):
            await here.wake(WakeUp.ROUND)
        await here.wake(WakeUp.EVENTS, "last")
        sent: list[bytes] = []
        async with asyncio.timeout(WITHIN_S):
            while b"last" not in b"".join(sent):
                message = await everything.get_message(timeout=WITHIN_S)
                sent += [] if message is None else [message["data"]]
        assert len([one for one in sent if b"probe" not in one]) == 2


async def test_a_hearer_that_left_is_forgotten(two: tuple[RedisWakeUps, RedisWakeUps]) -> None:
    here, there = two
    async with there.heard((WakeUp.ROUND, "")) as left:
        pass
    async with there.heard((WakeUp.ROUND, "")) as stays:
        await here.wake(WakeUp.ROUND)
        await asyncio.wait_for(stays.wait(), WITHIN_S)
    assert not left.is_set()


async def test_without_redis_a_ring_still_wakes_this_process(own_redis: EmbeddedRedis) -> None:
    client = connect(own_redis.url())
    async with RedisWakeUps(client).running() as wake_ups:
        await connected(wake_ups, wake_ups)
        own_redis.stop()
        for _ in range(2):
            async with wake_ups.heard((WakeUp.ROUND, "")) as event:
                await wake_ups.wake(WakeUp.ROUND)
                await asyncio.wait_for(event.wait(), WITHIN_S)
    await client.aclose()


async def test_wake_ups_are_heard_again_when_redis_is_back(own_redis: EmbeddedRedis) -> None:
    async with AsyncExitStack() as stack:
        pair = []
        for _ in range(2):
            client = connect(own_redis.url())
            stack.push_async_callback(client.aclose)
            pair.append(await stack.enter_async_context(RedisWakeUps(client).running()))
        here, there = pair
        await connected(here, there)
        own_redis.stop()
        await here.wake(WakeUp.ROUND)
        own_redis.start()
        await connected(here, there)
        await connected(there, here)


async def test_ringing_never_waits_for_redis() -> None:
    client = connect("redis://127.0.0.1:9")
    wake_ups = RedisWakeUps(client)
    with pytest.raises(StopIteration):
        wake_ups.wake(WakeUp.ROUND).send(None)  # it ends without having given way once
    async with wake_ups.running(), wake_ups.heard((WakeUp.ROUND, "")) as event:
        await wake_ups.wake(WakeUp.ROUND)
        await asyncio.wait_for(event.wait(), WITHIN_S)
    await client.aclose()


async def test_stopping_is_quick_with_and_without_redis(redis_url: str) -> None:
    for url in (redis_url, "redis://127.0.0.1:9"):
        client = connect(url)
        async with asyncio.timeout(3), RedisWakeUps(client).running() as wake_ups:
            await wake_ups.wake(WakeUp.ROUND)
        await client.aclose()
