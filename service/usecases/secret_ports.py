"""What keeping secrets needs of the world: keys, and a place for what is sealed with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.contract.identity import SecretView


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value. `key_id` names the key that opens it, and says nothing of the key."""

    key_id: str
    data: bytes = field(repr=False)


class KeyRing(Protocol):
    """Keys that encrypt and authenticate. Never called inside a transaction: a key may be far away."""

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        """Encrypt with the newest key. Only who names the same `context` can open it. Raises Unavailable."""
        ...

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
        """The value.

        Raises:
            SecretUnreadable: no key opens it, it was sealed for another context, or it was changed.
            Unavailable: the keys cannot be reached now.
        """
        ...


class Secrets(Protocol):
    """Secrets of projects, as rows."""

    async def put(self, project: str, name: str, sealed: Sealed, *, by: str, now: datetime) -> bool:
        """Insert or replace; whether it is new. Raises NotFound for an unknown project."""
        ...

    async def of_project(self, project: str) -> list[SecretView]:
        """Those of a project, by name."""
        ...

    async def delete(self, project: str, name: str) -> None:
        """Remove one. Raises NotFound."""
        ...

    async def get(self, project: str, names: Collection[str]) -> dict[str, Sealed]:
        """Those of the names that the project has."""
        ...


class SecretRotation(Protocol):
    """All secrets of all projects, to be sealed anew."""

    async def names(self) -> list[tuple[str, str]]:
        """Project and name of each."""
        ...

    async def replace(self, project: str, name: str, old: Sealed, new: Sealed) -> bool:
        """Keep `new` in place of `old`; False, and nothing done, if another value was set meanwhile."""
        ...
