"""Connections of a cluster on one machine, each through a proxy that can cut, refuse, block and delay."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

from headway.local.ports import HOST

Address: TypeAlias = tuple[str, int] | Path
"""A TCP port, or a Unix socket."""
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_PIECE_BYTES = 65536
_RESET = struct.pack("ii", 1, 0)
_START_TIMEOUT_S = 10.0
_CHANGING = frozenset({b"POST", b"PUT", b"PATCH", b"DELETE"})
_METHODS = _CHANGING | {b"GET", b"HEAD", b"OPTIONS"}
_LONGEST_METHOD = 8


class Link:
    """Proxy port that forwards each connection to one of `targets` in turn.

    Any thread may change its settings, which also apply to open connections.

    Args:
        name: name of the two ends.
        targets: returns the addresses; called for each connection.
        host: address on which it listens.
    """

    def __init__(self, name: str, targets: Callable[[], Sequence[Address]], host: str = HOST) -> None:
        self.name = name
        self.host = host
        self.port = 0
        self.refuses = False
        self.delay_s = 0.0
        self.lose_answer: Callable[[Address], None] | None = None
        """Called once, with the target, when it begins to answer a request for a change. The answer is lost."""
        self._targets = targets
        self._turn = itertools.count()
        self._open: set[asyncio.StreamWriter] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._accept, self.host, self.port or None)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def swallow(self) -> None:
        """Stop forwarding, and hold back the data."""
        assert self._loop is not None, "serve() comes first"
        self._loop.call_soon_threadsafe(self._whole.clear)

    def flow(self) -> None:
        """Continue to forward, beginning with the data that was held back."""
        assert self._loop is not None, "serve() comes first"
        self._loop.call_soon_threadsafe(self._whole.set)

    def cut(self) -> int:
        """Reset the open connections at both ends, and return the number of sockets. Call it in the loop's thread."""
        ended = list(self._open)
        for writer in ended:
            _reset(writer)
        return len(ended)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._whole.wait()
            found = None if self.refuses else await self._connect()
            if found is None:
                _reset(writer)
                return
            target, far = found
            method = b""

            def asked(piece: bytes) -> None:
                nonlocal method
                word = piece[:_LONGEST_METHOD].partition(b" ")[0]
                method = word if word in _METHODS else method

            def answered(_: bytes) -> None:
                lose = self.lose_answer
                if lose is not None and method in _CHANGING:
                    self.lose_answer = None
                    lose(target)
                    raise ConnectionAbortedError("the answer is lost")

            self._open.add(far[1])
            try:
                await asyncio.gather(self._pump(reader, far[1], asked), self._pump(far[0], writer, answered))
            finally:
                self._open.discard(far[1])
                far[1].close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one end is gone, so the other end is closed too
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self) -> tuple[Address, Streams] | None:
        targets = list(self._targets())
        for _ in targets:
            target = targets[next(self._turn) % len(targets)]
            with contextlib.suppress(OSError):
                if isinstance(target, Path):
                    return target, await asyncio.open_unix_connection(target)
                return target, await asyncio.open_connection(*target)
        return None

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], None]
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            look(piece)
            await self._whole.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(piece)
            await writer.drain()
        await self._whole.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()


class ProxyNetwork:
    """All links, served by one thread."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def add(self, name: str, targets: Callable[[], Sequence[Address]], host: str = HOST) -> Link:
        """Create a link, and return it once it listens."""
        link = Link(name, targets, host)
        self._servers.append(self._do(link.serve()).result(_START_TIMEOUT_S))
        self.links[name] = link
        return link

    def cut(self, link: Link) -> int:
        """Reset the open connections of a link, and return the number of sockets."""

        async def cut() -> int:
            return link.cut()

        ended: int = self._do(cut()).result(_START_TIMEOUT_S)
        return ended

    def heal(self) -> None:
        """Reset all links to their normal state."""
        for link in self.links.values():
            link.refuses = False
            link.flow()
            link.delay_s = 0.0
            link.lose_answer = None

    def close(self) -> None:
        """Close every connection, and stop listening."""

        async def close() -> None:
            for server in self._servers:
                server.close()
            for link in self.links.values():
                link.cut()
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self._do(close()).result(_START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the socket so that the other end gets an error, as after the loss of a host."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
