"""Object storage through obstore: S3, GCS, Azure, a local folder, memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, S3Store, from_url

from service.domain.errors import NotFound, Unavailable

_CHUNK = 1000


class ObjectStorage:
    """Implements `usecases.ports.Storage` over one URL (`file:///…`, `s3://bucket/prefix`, `memory:///`).

    Credentials and endpoints come from the usual environment of each provider (`AWS_*`, …).
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._local: Path | None = None
        self._store: ObjectStore
        if parts.scheme == "file":
            self._local = Path(unquote(parts.path))
            self._local.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(prefix=str(self._local))
        elif parts.scheme == "s3":
            # A store of one's own often has no certificate; AWS itself is reached by https anyway.
            self._store = S3Store.from_url(url, client_options={"allow_http": True})
        else:
            self._store = from_url(url)

    async def put(self, key: str, data: bytes) -> None:
        """Store an object whole."""
        try:
            await obstore.put_async(self._store, key, data)
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def get(self, key: str) -> bytes:
        """An object."""
        try:
            result = await obstore.get_async(self._store, key)
            return bytes(await result.bytes_async())
        except (NotFoundError, FileNotFoundError) as error:
            raise NotFound(f"no object {key} in storage") from error
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[str]:
        """Keys under `prefix` in ascending order, those after `after` only.

        A folder lists in no order, so its names are sorted here; object stores list sorted.
        """
        try:
            if self._local is not None:
                for key in await asyncio.to_thread(_sorted_names, self._local, prefix, after):
                    yield key
                return
            async for batch in obstore.list(self._store, prefix=prefix, offset=after, chunk_size=_CHUNK):
                for entry in sorted(batch, key=lambda one: one["path"]):
                    yield entry["path"]
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error

    async def delete(self, key: str) -> None:
        """Remove an object; one that is absent is no error."""
        try:
            await obstore.delete_async(self._store, key)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise _unavailable(error) from error


_HALF_WRITTEN = re.compile(r"#\d+$")
"""LocalStore writes an object beside its place first, under its name and a number, and then renames it."""


def _sorted_names(root: Path, prefix: str, after: str | None) -> list[str]:
    files = (path for path in (root / prefix).rglob("*") if path.is_file())
    names = sorted(str(path.relative_to(root)) for path in files if not _HALF_WRITTEN.search(path.name))
    return [name for name in names if after is None or name > after]


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"object storage does not answer ({type(error).__name__}: {str(error)[:200]})")
