"""Minimal clients of simulated agents for HTTP/1.1 and Redis on plain sockets, one request at a time.

A client library for each agent would use more processor time than the service under test.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis


class Answer:
    """HTTP response: status, body, and `Retry-After` in seconds, or 0."""

    __slots__ = ("body", "retry_after_s", "status")

    def __init__(self, head: bytes, body: bytes) -> None:
        self.status = int(head.split(b" ", 2)[1])
        self.body = body
        self.retry_after_s = float(_header(head, b"retry-after") or 0)


def _header(head: bytes, name: bytes) -> bytes:
    found = head.lower().split(b"\r\n" + name + b":", 1)
    return found[1].split(b"\r\n", 1)[0].strip() if len(found) == 2 else b""


class Connection:
    """Keep-alive connection to an HTTP service, which is reopened after the service has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(
        self, method: str, path: str, token: str, body: bytes = b"", kind: str = "application/json"
    ) -> Answer:
        """Send a request, and return the response.

        Raises:
            OSError, EOFError: the service cannot be reached on a new connection either.
        """
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        kept = self._streams is not None
        try:
            return await self._exchange(request)
        except (OSError, EOFError):
            self.close()
            if not kept:
                raise
            return await self._exchange(request)  # closed while idle; every request here may be repeated

    async def _exchange(self, request: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(_header(head, b"content-length") or 0)
        return Answer(head, await reader.readexactly(length) if length else b"")

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Stream:
    """Command stream of a node, read and cleared as by an agent."""

    def __init__(self, url: str, name: str, block_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 6379
        self._credentials = [unquote(one).encode() for one in (parts.username, parts.password) if one]
        """User and password, or the password alone if the URL names no user."""
        self._name = name
        self._read = (b"XREAD", b"COUNT", b"100", b"BLOCK", str(int(block_s * 1000)).encode(), b"STREAMS")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._parser = hiredis.Reader()

    async def next(self) -> list[tuple[bytes, bytes]]:
        """Return the ids and commands in the stream, after waiting for at least one; empty if none came in time."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
            if self._credentials:
                await self._ask(b"AUTH", *self._credentials)
        reply = await self._ask(*self._read, self._name.encode(), b"0-0")
        return [(entry_id, fields[1]) for entry_id, fields in reply[0][1]] if reply else []

    async def handled(self, entry_ids: list[bytes]) -> None:
        """Remove executed commands."""
        if entry_ids:
            await self._ask(b"XDEL", self._name.encode(), *entry_ids)

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, *words: bytes) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in words))
        while (reply := self._parser.gets()) is False:
            data = await reader.read(65_536)
            if not data:
                raise EOFError("Redis closed the connection")
            self._parser.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply
