"""Live pages: each open page is read and rendered once a second, and sent to all of its viewers.

A hundred viewers of one page cost one query and one rendering, and a hundred writes of the same bytes. Pages
without viewers are dropped.
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

from service.api.http.render import sse
from service.console.html.fragments import Content, Fragment, PageVersion, changes, redrawn
from service.domain.shared.connections import CONNECTIONS
from service.domain.shared.errors import HeadwayServiceError, Unavailable

K = TypeVar("K", bound=Hashable)
EVERY_S = 1.0
BUSY_SHARE = 0.2
"""Maximum share of time spent on drawing a page. A page that takes long to draw is drawn less often."""
SELDOM_S = 3.0
"""Longest interval between two drawings of a page: on a busy machine, `BUSY_SHARE` alone could make it any
length.
"""
BEAT_S = 2.0
"""Interval of messages to viewers of a page that does not change. They show that the page is still current."""
_KEPT_S = 30.0
"""Seconds for which a page without viewers is kept, for the next viewer."""


@dataclass
class _Channel:
    """The state of one page that has viewers, or had some recently."""

    page_version: PageVersion = field(default_factory=PageVersion)
    read_s: float = -1e9
    """Monotonic time of the last reading."""
    took_s: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)
    """Values that the reader keeps from one reading to the next."""
    error: HeadwayServiceError | None = None
    viewers: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    refreshed: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set and replaced after each reading."""
    worker: asyncio.Task[None] | None = None
    messages: dict[int, str] = field(default_factory=dict)
    """Patch messages to the present version, by the version that a viewer has."""


Read = Callable[[K, dict[str, Any]], Awaitable[list[Content]]]


class LivePages(Generic[K]):
    """The live pages by key.

    Args:
        read: returns the contents of a page; it may keep values in the dictionary for the next call.
        render: returns a fragment as HTML.
        now: returns the service's time, in UTC.
        clock_s: returns seconds of a monotonic clock.
    """

    def __init__(
        self,
        read: Read[K],
        render: Callable[[Fragment], str],
        now: Callable[[], datetime],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._render = render
        self._now = now
        self._clock_s = clock_s
        self._channels: dict[K, _Channel] = {}
        self._readers = asyncio.Semaphore(CONNECTIONS.pages)
        self.epoch = secrets.token_hex(4)
        """Random id of this process. Versions of another process have no meaning here."""

    @property
    def viewers(self) -> int:
        """Number of streams that are open."""
        return sum(one.viewers for one in self._channels.values())

    async def current(self, key: K) -> PageVersion:
        """Return the present version of a page, read now or within the last second.

        Raises:
            HeadwayServiceError: the page cannot be read.
        """
        self._drop_unwatched()
        channel = self._channels.setdefault(key, _Channel())
        await self._refresh(key, channel)
        if channel.error is not None:
            raise channel.error
        return channel.page_version

    async def follow(self, key: K, since: int) -> AsyncGenerator[str]:
        """Yield server-sent events of a page.

        `patch` has the changes since a version, and `beat` says that nothing changed. `stale` says that the
        page cannot be read now, and `gone` that it can never be read again.
        """
        channel = self._channels.setdefault(key, _Channel())
        async with self._watched(key, channel):
            version = since
            while True:
                refreshed = channel.refreshed
                error = channel.error
                if error is not None and not isinstance(error, Unavailable):
                    yield sse("gone", json.dumps({"message": error.message}))
                    return
                if error is not None:
                    yield sse("stale", json.dumps({"message": error.message}))
                elif channel.page_version.version != version and channel.page_version.version > 0:
                    message, version = self._message(channel, version), channel.page_version.version
                    yield message
                else:
                    yield sse("beat", json.dumps({"at": self._now().isoformat(timespec="seconds")}))
                await self._next(channel, refreshed, version)

    async def _next(self, channel: _Channel, refreshed: asyncio.Event, version: int) -> None:
        """Wait for a reading that changed something, or until a beat is due."""
        end_s = self._clock_s() + BEAT_S
        while (left_s := end_s - self._clock_s()) > 0:
            try:
                await asyncio.wait_for(refreshed.wait(), left_s)
            except TimeoutError:
                return
            if channel.page_version.version != version or channel.error is not None:
                return
            refreshed = channel.refreshed

    def _message(self, channel: _Channel, since: int) -> str:
        """Return the patch from a version to the present one, which is built once for all viewers with that
        version.
        """
        message = channel.messages.get(since)
        if message is None:
            version = channel.page_version.version
            body = {"at": self._now().isoformat(timespec="seconds"), **changes(channel.page_version, since)}
            message = sse("patch", json.dumps(body), f"{self.epoch}.{version}")
            channel.messages[since] = message
        return message

    @asynccontextmanager
    async def _watched(self, key: K, channel: _Channel) -> AsyncIterator[None]:
        channel.viewers += 1
        if channel.worker is None:
            channel.worker = asyncio.create_task(self._refresh_while_watched(key, channel))
        try:
            yield
        finally:
            channel.viewers -= 1
            if channel.viewers == 0 and channel.worker is not None:
                channel.worker.cancel()
                channel.worker = None

    async def _refresh_while_watched(self, key: K, channel: _Channel) -> None:
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
                    page_version = redrawn(channel.page_version, contents, self._render)
                except HeadwayServiceError as error:
                    channel.error = error
                else:
                    channel.error = None
                    if page_version is not channel.page_version:
                        channel.page_version = page_version
                        channel.messages = {}
                channel.read_s = self._clock_s()
                channel.took_s = channel.read_s - began_s
        refreshed, channel.refreshed = channel.refreshed, asyncio.Event()
        refreshed.set()

    def _drop_unwatched(self) -> None:
        old_s = self._clock_s() - _KEPT_S
        for key in [
            key
            for key, one in self._channels.items()
            if one.viewers == 0 and one.read_s < old_s and not one.reading.locked()
        ]:
            del self._channels[key]
