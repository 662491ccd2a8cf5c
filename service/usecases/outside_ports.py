"""What use cases need outside of the database: the nodes' command streams, and object storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from service.usecases.records import PendingCommand
from service.usecases.retention_ports import Stored


class CommandQueue(Protocol):
    """The nodes' command streams."""

    async def push(self, commands: Sequence[PendingCommand]) -> None:
        """Append to the streams. Raises Unavailable."""
        ...


class Storage(Protocol):
    """Object storage: bundles and logs."""

    async def put(self, key: str, data: bytes) -> None:
        """Store an object whole. Raises Unavailable."""
        ...

    async def get(self, key: str) -> bytes:
        """An object. Raises NotFound, Unavailable."""
        ...

    def entries(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
        """Objects under `prefix` in the order of their keys, those after the key `after` only. Raises Unavailable."""
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; one that is absent is no error."""
        ...
