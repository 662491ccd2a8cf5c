"""One shared picture of each page that somebody looks at: read and rendered once a second, and sent to everybody.

A hundred people who look at the same page cost one query and one rendering, and a hundred writes of the same bytes. Pages that
nobody looks at are forgotten.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from service.api.render import sse
from service.console.pieces import Content, Picture, Piece, changes, redrawn
from service.domain.errors import HeadwayServiceError, Unavailable

K = TypeVar("K", bound=Hashable)
EVERY_S = 1.0
BUSY_SHARE = 0.2
"""A page that is costly to draw is drawn less often, so that its drawing takes no more than this share of the time..."""
SELDOM_S = 3.0
"""...but at least this often: on a busy machine everything takes long."""
BEAT_S = 2.0
"""Viewers hear of a page that does not change this often, to know that it is still true."""
_READERS = 4
"""Pages that are read from the database at a time: the pool of connections is for others too."""
_KEPT_S = 30.0
"""A picture that nobody looks at is kept so long, for the next page of the same."""


@dataclass
class _Channel:
    """A page that somebody looks at, or just has."""

    picture: Picture = field(default_factory=Picture)
    read_s: float = -1e9
    """When it was last read."""
    took_s: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)
    """What its reader keeps from one time to the next."""
    trouble: HeadwayServiceError | None = None
    viewers: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    turned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, whenever it was read."""
    worker: asyncio.Task[None] | None = None
    said: dict[int, str] = field(default_factory=dict)
    """The message for whoever has a version, of the present picture."""


Read = Callable[[K, dict[str, Any]], Awaitable[list[Content]]]


class Board(Generic[K]):
    """The pictures of all pages, by key.

    Args:
        read: what a page shows now; it may keep things in the dictionary, for the next time.
        render: a piece as HTML.
        now: the service's time, in UTC.
        clock_s: seconds of a clock that only ever goes forward.
    """

    def __init__(
        self,
        read: Read[K],
        render: Callable[[Piece], str],
        now: Callable[[], datetime],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._render = render
        self._now = now
        self._clock_s = clock_s
        self._channels: dict[K, _Channel] = {}
        self._readers = asyncio.Semaphore(_READERS)
        self.epoch = secrets.token_hex(4)
        """Versions of another process, or of an earlier life of this one, mean nothing here."""

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return sum(one.viewers for one in self._channels.values())

    async def picture(self, key: K) -> Picture:
        """The page as it is: read now, unless that was done within the last second.

        Raises:
            HeadwayServiceError: it cannot be read.
        """
        self._forget()
        channel = self._channels.setdefault(key, _Channel())
        await self._refresh(key, channel)
        if channel.trouble is not None:
            raise channel.trouble
        return channel.picture

    async def follow(self, key: K, since: int) -> AsyncGenerator[str]:
        """Server-sent events: `patch` with what has changed since a version, `beat` while nothing does, `stale` while the page
        cannot be read, and `gone` when it never will be again.
        """
        channel = self._channels.setdefault(key, _Channel())
        async with self._watched(key, channel):
            version = since
            while True:
                turned = channel.turned
                trouble = channel.trouble
                if trouble is not None and not isinstance(trouble, Unavailable):
                    yield sse("gone", json.dumps({"message": trouble.message}))
                    return
                if trouble is not None:
                    yield sse("stale", json.dumps({"message": trouble.message}))
                elif channel.picture.version != version and channel.picture.version > 0:
                    said, version = self._message(channel, version), channel.picture.version
                    yield said
                else:
                    yield sse("beat", json.dumps({"at": self._now().isoformat(timespec="seconds")}))
                await self._next(channel, turned, version)

    async def _next(self, channel: _Channel, turned: asyncio.Event, version: int) -> None:
        """Wait for a reading that changed something, or until the viewer should hear that nothing did."""
        end_s = self._clock_s() + BEAT_S
        while (left_s := end_s - self._clock_s()) > 0:
            try:
                await asyncio.wait_for(turned.wait(), left_s)
            except TimeoutError:
                return
            if channel.picture.version != version or channel.trouble is not None:
                return
            turned = channel.turned

    def _message(self, channel: _Channel, since: int) -> str:
        """The patch from a version to the present one: written once for all who have that version."""
        said = channel.said.get(since)
        if said is None:
            version = channel.picture.version
            body = {"at": self._now().isoformat(timespec="seconds"), **changes(channel.picture, since)}
            said = sse("patch", json.dumps(body), f"{self.epoch}.{version}")
            channel.said[since] = said
        return said

    @asynccontextmanager
    async def _watched(self, key: K, channel: _Channel) -> AsyncIterator[None]:
        channel.viewers += 1
        if channel.worker is None:
            channel.worker = asyncio.create_task(self._keep_up(key, channel))
        try:
            yield
        finally:
            channel.viewers -= 1
            if channel.viewers == 0 and channel.worker is not None:
                channel.worker.cancel()
                channel.worker = None

    async def _keep_up(self, key: K, channel: _Channel) -> None:
        while True:
            await self._refresh(key, channel)
            await asyncio.sleep(min(max(EVERY_S, channel.took_s / BUSY_SHARE), SELDOM_S))

    async def _refresh(self, key: K, channel: _Channel) -> None:
        async with channel.reading:
            if self._clock_s() - channel.read_s < 0.9 * EVERY_S:
                return
            async with self._readers:
                began_s = self._clock_s()
                try:
                    contents = await self._read(key, channel.memory)
                    picture = redrawn(channel.picture, contents, self._render)
                except HeadwayServiceError as error:
                    channel.trouble = error
                else:
                    channel.trouble = None
                    if picture is not channel.picture:
                        channel.picture = picture
                        channel.said = {}
                channel.read_s = self._clock_s()
                channel.took_s = channel.read_s - began_s
        turned, channel.turned = channel.turned, asyncio.Event()
        turned.set()

    def _forget(self) -> None:
        old_s = self._clock_s() - _KEPT_S
        for key in [
            key
            for key, one in self._channels.items()
            if one.viewers == 0 and one.read_s < old_s and not one.reading.locked()
        ]:
            del self._channels[key]
