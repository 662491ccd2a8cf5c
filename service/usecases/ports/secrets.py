"""Interfaces for keeping secrets: encryption keys, and storage for encrypted values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.contract.views.identity import SecretView


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value. `key_id` names the key that decrypts it and reveals nothing about the key."""

    key_id: str
    data: bytes = field(repr=False)


class KeyRing(Protocol):
    """Keys that encrypt and authenticate.

    No transaction may be open during a call, since a key service may be remote.
    """

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        """Encrypt with the newest key.

        Decryption requires the same `context`. Raise Unavailable if the key cannot be reached.
        """

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
        """Decrypt a sealed value, and return it.

        Raises:
            SecretUnreadable: no key opens it, it was sealed for another context, or it was changed.
            Unavailable: the keys cannot be reached now.
        """


class Secrets(Protocol):
    """Sealed secrets, by project."""

    async def put(self, project: str, name: str, sealed: Sealed, *, by: str, now: datetime) -> bool:
        """Insert or replace a secret. Return True if it is new. Raise NotFound for an unknown project."""

    async def of_project(self, project: str) -> list[SecretView]:
        """Return the secrets of a project, by name and without values."""

    async def delete(self, project: str, name: str) -> None:
        """Remove a secret. Raise NotFound if the project has none of that name."""

    async def get(self, project: str, names: Collection[str]) -> dict[str, Sealed]:
        """Return the sealed values by name. Names that the project does not have are left out."""

    async def names(self) -> list[tuple[str, str]]:
        """Return the project and name of each secret."""

    async def replace(self, project: str, name: str, old: Sealed, new: Sealed) -> bool:
        """Replace the sealed value `old` by `new`.

        Return False, and change nothing, if another value was set meanwhile.
        """
