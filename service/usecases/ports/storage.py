"""Interfaces for object storage, and for the bundles in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from service.domain.identity.access import Principal


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """An uploaded bundle and the paths in it."""

    digest: str
    size_bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in storage, with the moment at which it was written."""

    key: str
    size_bytes: int
    at: datetime


class Bundles(Protocol):
    """Bundle rows of the database. The bytes of bundles are in object storage."""

    async def get(self, digest: str, reader: Principal | None = None) -> BundleRecord | None:
        """Return an uploaded bundle that the reader may read, and keep it until the transaction ends. Readers are its uploaders
        and everyone who can see a job that starts from it.
        """

    async def uploaded(self, digest: str, uploader: Principal) -> None:
        """Record the principal as an uploader of the bundle, who may read it."""

    async def add(self, bundle: BundleRecord, now: datetime) -> None:
        """Store an upload. Uploading the same bundle again refreshes its upload time."""


class StoredObjects(Protocol):
    """Object storage. Every method raises Unavailable if the storage does not answer."""

    async def put(self, key: str, data: bytes) -> None:
        """Store an object, in place of any present one."""

    async def get(self, key: str) -> bytes:
        """Return the bytes of an object. Raise NotFound if it does not exist."""

    async def find(self, key: str) -> Stored | None:
        """Return the facts about an object, or None if it does not exist.

        The answer is present even where lists lag behind, as they do in stores of several sites.
        """

    async def copy(self, source: str, target: str) -> None:
        """Copy an object within the storage. Raise NotFound if it does not exist."""

    def entries(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
        """Yield the objects under `prefix` in key order, after the key `after` if given."""

    async def delete(self, key: str) -> None:
        """Remove an object. A missing object is not an error."""

    def folders(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of the folders directly under a prefix, such as `logs/`."""

    async def delete_folder(self, prefix: str) -> None:
        """Delete all objects under a prefix, which ends in `/`."""

    async def delete_all(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing objects are not an error."""

    async def delete_partial(self, before: datetime) -> int:
        """Remove unfinished uploads from before a moment, if the store does not do this itself.

        Return the number removed.
        """
