"""Redis adapters: wake-up signals, the command queue, and the latest standstills of the service's loops.

Redis may lose everything. Only two of its keys are not copies of PostgreSQL's data: the standstills, without which a
diagnosis lacks a warning, and the latest delivery, without which a lost tail of PostgreSQL goes unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from headway.contract.agents import COMMAND_FIELD
from headway.contract.standstills import Standstill
from service.domain.shared.errors import Unavailable
from service.usecases.ports.facts import WakeUp, WakeUps
from service.usecases.ports.rounds import CommandQueue, Delivery, PendingCommand
from service.usecases.ports.upkeep import Standstills

log = structlog.get_logger()

_CHANNEL = "headway:bells"
_STANDSTILLS = "headway:standstills"
_STANDSTILLS_MAX = 200
_STANDSTILLS_KEPT_S = 86_400
STREAM_MAX = 10_000
"""Length limit of a node's stream, for an agent that is away.

An agent deletes the commands that it has handled. The service later pushes dropped commands again.
"""
STREAM_KEPT_S = 86_400
"""Time after which a stream without new commands expires.

The service pushes its unacknowledged commands again.
"""
_DELIVERY = "headway:delivery"
_PUSH = """
local known = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
if known >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'at_ms', ARGV[2])
for i = 2, #KEYS do
    redis.call('XADD', KEYS[i], 'MAXLEN', '~', ARGV[3], '*', ARGV[5], ARGV[i + 4])
    redis.call('EXPIRE', KEYS[i], ARGV[4])
end
return 1
"""
_SKIP = """
local known = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
if ARGV[1] ~= '' and known ~= tonumber(ARGV[1]) then return false end
return redis.call('HINCRBY', KEYS[1], 'number', ARGV[2])
"""
_DELIVERIES_LEFT_OUT = 1_000_000
"""Gap that an emptied queue leaves in the delivery numbers.

It exceeds the number of deliveries that a frozen former leader can have committed and not yet pushed.
"""
_RECONNECT_S = 1.0
_SEND_PAUSE_S = 0.01
"""Pause after each batch of signals. Equal signals are sent once a batch, since a thousand submits a second
ask for the same wake-up.
"""


def connect(url: str, ca_file: Path | None = None) -> Redis:
    """Return a client that fails fast, because its callers can go on without Redis.

    With `rediss://` it checks the certificate and the name of the server, by `ca_file` if there is one.
    """
    trust: dict[str, Any] = {}
    if ca_file is not None and url.startswith("rediss://"):
        trust = {"ssl_ca_certs": str(ca_file)}
    return Redis.from_url(
        url,
        socket_timeout=10,
        socket_connect_timeout=3,
        health_check_interval=30,
        retry=Retry(NoBackoff(), 1),
        **trust,
    )


def stream_of(node_id: str) -> str:
    """Return the key of a node's command stream."""
    return f"headway:node:{node_id}:commands"


class RedisCommandQueue(CommandQueue):
    """Command queue in Redis streams."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._push = redis.register_script(_PUSH)
        self._skip = redis.register_script(_SKIP)

    async def latest(self) -> Delivery | None:
        try:
            number, at_ms = await self._redis.hmget(_DELIVERY, ["number", "at_ms"])
        except (RedisError, OSError) as error:
            raise Unavailable(
                f"Redis does not answer ({type(error).__name__}); commands are pushed later"
            ) from error
        if number is None:
            return None
        return Delivery(int(number), datetime.fromtimestamp(int(at_ms or 0) / 1000, UTC))

    async def push(self, commands: Sequence[PendingCommand], delivery: Delivery) -> bool:
        keys: list[str] = [_DELIVERY, *(stream_of(command.node_id) for command in commands)]
        values: list[str | int] = [
            delivery.number,
            int(delivery.at.timestamp() * 1000),
            STREAM_MAX,
            STREAM_KEPT_S,
            COMMAND_FIELD,
            *(command.body for command in commands),
        ]
        try:
            pushed: Any = await self._push(keys, values)
        except (RedisError, OSError) as error:
            raise Unavailable(
                f"Redis does not answer ({type(error).__name__}); commands are pushed later"
            ) from error
        return bool(pushed)

    async def empty(self, latest: int | None = None) -> int | None:
        try:
            # The number first: no frozen leader can push between the deletion and the next delivery.
            number: Any = await self._skip(
                [_DELIVERY], ["" if latest is None else latest, _DELIVERIES_LEFT_OUT]
            )
            if number is None:
                return None
            async for stream in self._redis.scan_iter(stream_of("*"), count=1000):
                await self._redis.unlink(stream)
        except (RedisError, OSError) as error:
            raise Unavailable(
                f"Redis does not answer ({type(error).__name__}), and may hold commands that the database does not know"
            ) from error
        return int(number)


class RedisStandstills(Standstills):
    """Standstills in a Redis stream, whose clock is that of the Redis server."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def add(self, standstills: Sequence[Standstill]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for one in standstills:
                    pipeline.xadd(_STANDSTILLS, {"view": one.model_dump_json()}, maxlen=_STANDSTILLS_MAX)
                pipeline.expire(_STANDSTILLS, _STANDSTILLS_KEPT_S)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer ({type(error).__name__})") from error

    async def since(self, at: datetime) -> Sequence[Standstill]:
        try:
            found: Any = await self._redis.xrange(_STANDSTILLS, min=f"{int(at.timestamp() * 1000)}")
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer ({type(error).__name__})") from error
        return [Standstill.model_validate_json(fields[b"view"]) for _, fields in found]


class RedisWakeUps(WakeUps):
    """Wake-up signals over Redis pub/sub.

    Signals are coalesced and sent in the background, so no caller waits for Redis. A lost signal only delays
    its listener until the listener's next poll.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pending: dict[str, None] = {}
        self._has_pending = asyncio.Event()
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisWakeUps]:
        """Send and receive signals until the block ends."""
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]
        try:
            yield self
        finally:
            # The client can mistake a cancellation for its own timeout. Then this flag ends the loop.
            self._stopping = True
            for task in tasks:
                task.cancel()
            self._has_pending.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wake(self, wake_up: WakeUp, about: str = "") -> None:
        self._pending[f"{wake_up}|{about}"] = None
        self._has_pending.set()

    @asynccontextmanager
    async def heard(self, *wake_ups: tuple[WakeUp, str]) -> AsyncIterator[asyncio.Event]:
        event = asyncio.Event()
        names = [f"{wake_up}|{about}" for wake_up, about in wake_ups]
        for name in names:
            self._waiters.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            for name in names:
                waiters = self._waiters.get(name, set())
                waiters.discard(event)
                if not waiters:
                    self._waiters.pop(name, None)

    def is_heard(self, wake_up: WakeUp, about: str) -> bool:
        return f"{wake_up}|{about}" in self._waiters

    async def _send(self) -> None:
        while not self._stopping:
            await self._has_pending.wait()
            self._has_pending.clear()
            names, self._pending = list(self._pending), {}
            try:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for name in names:
                        pipeline.publish(_CHANNEL, name)
                    await pipeline.execute()
            except (RedisError, OSError) as error:
                log.warning("wake_ups_lost", count=len(names), error=str(error))
                self._hear(names)
            await asyncio.sleep(_SEND_PAUSE_S)

    async def _listen(self) -> None:
        while not self._stopping:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(_CHANNEL)
                    while not self._stopping:
                        message = await pubsub.get_message(timeout=5.0)
                        if message is not None:
                            self._hear([message["data"].decode()])
            except (RedisError, OSError) as error:
                log.warning("wake_ups_unheard", error=str(error), again_in_s=_RECONNECT_S)
                await asyncio.sleep(_RECONNECT_S)

    def _hear(self, names: Sequence[str]) -> None:
        for name in names:
            for event in self._waiters.get(name, ()):
                event.set()
