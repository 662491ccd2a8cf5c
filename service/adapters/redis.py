"""Redis: the bell and the command queue. It holds nothing that Postgres does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from headway.contract.agents import COMMAND_FIELD
from service.domain.errors import Unavailable
from service.usecases.records import Bell, PendingCommand

log = structlog.get_logger()

_CHANNEL = "headway:bells"
_STREAM_MAX = 10_000
"""An agent deletes what it has handled; this bounds the stream of one that is away. What falls off is
pushed again."""
_STREAM_KEPT_S = 86_400
"""The stream of a node that nothing was sent to for so long goes. What was in it and not taken up is pushed again."""
_RECONNECT_S = 1.0


def connect(url: str, ca_file: Path | None = None) -> Redis:
    """A client that fails fast: its callers know how to go on without Redis. With `rediss://` the server's certificate and its
    name are checked, by `ca_file` where there is one.
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
    """The command stream of a node."""
    return f"headway:node:{node_id}:commands"


class RedisCommandQueue:
    """Implements `usecases.ports.CommandQueue`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def push(self, commands: Sequence[PendingCommand]) -> None:
        """Append each command to its node's stream."""
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.xadd(
                        stream_of(command.node_id),
                        {COMMAND_FIELD: command.body},
                        maxlen=_STREAM_MAX,
                        approximate=True,
                    )
                for node_id in {command.node_id for command in commands}:
                    pipeline.expire(stream_of(node_id), _STREAM_KEPT_S)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer ({type(error).__name__}); commands wait") from error


class RedisBells:
    """Rings bells over pub/sub, and wakes those in this process who wait for one.

    Rings are coalesced and sent in the background: nobody waits for Redis, and a ring that is lost
    only delays its hearer until it looks by itself.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._to_ring: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisBells]:
        """Ring and listen until the block ends."""
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]
        try:
            yield self
        finally:
            # The client may take a cancellation for a timeout of its own: the flag ends its loop then.
            self._stopping = True
            for task in tasks:
                task.cancel()
            self._wake.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ring(self, bell: Bell, about: str = "") -> None:
        """Ring soon."""
        self._to_ring[f"{bell}|{about}"] = None
        self._wake.set()

    @asynccontextmanager
    async def heard(self, *bells: tuple[Bell, str]) -> AsyncIterator[asyncio.Event]:
        """An event that is set when one of the bells rings; the hearer clears it."""
        event = asyncio.Event()
        names = [f"{bell}|{about}" for bell, about in bells]
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

    def is_heard(self, bell: Bell, about: str) -> bool:
        """Whether somebody in this process waits for it."""
        return f"{bell}|{about}" in self._waiters

    async def _send(self) -> None:
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            names, self._to_ring = list(self._to_ring), {}
            try:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for name in names:
                        pipeline.publish(_CHANNEL, name)
                    await pipeline.execute()
            except (RedisError, OSError) as error:
                log.warning("bells_lost", count=len(names), error=str(error))
                self._hear(names)

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
                log.warning("bells_unheard", error=str(error), again_in_s=_RECONNECT_S)
                await asyncio.sleep(_RECONNECT_S)

    def _hear(self, names: Sequence[str]) -> None:
        for name in names:
            for event in self._waiters.get(name, ()):
                event.set()
