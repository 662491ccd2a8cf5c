"""Object storage through obstore: S3, GCS, Azure, a local folder, memory."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, S3Store, from_url

from headway.contract.runtime import STORAGE_AWAY
from headway.storage.stores import may_pass, short
from service.domain.shared.errors import NotFound, Unavailable
from service.usecases.ports.storage import Stored, StoredObjects

if TYPE_CHECKING:
    from obstore.store import RetryConfig  # a type that does not exist at run time

_CHUNK = 1000
_COPIED_BYTES = 8 << 20
_MISSING = (NotFoundError, FileNotFoundError)
_REFUSED = re.compile(r"status code: (\d{3})")
"""Status in an error of obstore; a refused connection has none."""
_RETRIES: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=5),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1)},
}
"""Retries of a store that answers 5xx: brief, because the caller gets a 503 and retries the whole request."""


class ObjectStorage(StoredObjects):
    """Object storage at one URL (`file:///…`, `s3://bucket/prefix`, `memory:///`). Credentials and
    endpoints come from the usual environment of each provider (`AWS_*`, …). Every method raises Unavailable
    if the storage does not answer.
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
            # A self-hosted store often has no certificate. AWS itself is always reached by https.
            self._store = S3Store.from_url(url, client_options={"allow_http": True}, retry_config=_RETRIES)
        elif parts.scheme == "memory":
            self._store = from_url(url)
        else:
            self._store = from_url(url, retry_config=_RETRIES)

    async def put(self, key: str, data: bytes) -> None:
        with _errors_as_unavailable():
            await obstore.put_async(self._store, key, data)

    async def get(self, key: str) -> bytes:
        with _errors_as_unavailable():
            try:
                result = await obstore.get_async(self._store, key)
                return bytes(await result.bytes_async())
            except _MISSING as error:
                raise NotFound(f"no object {key} in storage") from error

    async def find(self, key: str) -> Stored | None:
        with _errors_as_unavailable():
            try:
                found = await obstore.head_async(self._store, key)
            except _MISSING:
                return None
            return Stored(key, found["size"], found["last_modified"])

    async def copy(self, source: str, target: str) -> None:
        with _errors_as_unavailable():
            try:
                if self._local is not None:
                    # LocalStore would make a hard link, and with it share the owner of the file.
                    await asyncio.to_thread(_copy_file, self._local, source, target)
                else:
                    await obstore.copy_async(self._store, source, target)
            except _MISSING as error:
                raise NotFound(f"no object {source} in storage") from error

    async def delete(self, key: str) -> None:
        with _errors_as_unavailable(), suppress(*_MISSING):
            await obstore.delete_async(self._store, key)

    async def folders(self, prefix: str) -> AsyncIterator[str]:
        with _errors_as_unavailable():
            if self._local is not None:
                for name in await asyncio.to_thread(_subfolders, self._local / prefix):
                    yield name
                return
            found = await obstore.list_with_delimiter_async(self._store, prefix=prefix)
            for folder in sorted(found["common_prefixes"]):
                yield folder.rstrip("/").rpartition("/")[2]

    async def entries(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
        # A local folder lists its files in no order, so they are sorted here. Object stores list sorted.
        with _errors_as_unavailable():
            if self._local is not None:
                for stored in await asyncio.to_thread(_sorted_files, self._local, prefix, after):
                    yield stored
                return
            async for batch in obstore.list(self._store, prefix=prefix, offset=after, chunk_size=_CHUNK):
                for entry in sorted(batch, key=lambda one: one["path"]):
                    yield Stored(entry["path"], entry["size"], entry["last_modified"])

    async def delete_folder(self, prefix: str) -> None:
        if self._local is not None:
            with _errors_as_unavailable():
                await asyncio.to_thread(_remove_folder, self._local / prefix)
            return
        keys: list[str] = []
        async for stored in self.entries(prefix):
            keys.append(stored.key)
            if len(keys) == _CHUNK:
                await self.delete_all(keys)
                keys = []
        await self.delete_all(keys)

    async def delete_all(self, keys: Sequence[str]) -> None:
        with _errors_as_unavailable():
            try:
                if keys:
                    await obstore.delete_async(self._store, list(keys))
            except _MISSING:
                for key in keys:  # the deletion stopped at the first missing object
                    await self.delete(key)

    async def delete_partial(self, before: datetime) -> int:
        if self._local is None:
            return 0
        with _errors_as_unavailable():
            return await asyncio.to_thread(_remove_half_written, self._local, before.timestamp())


_HALF_WRITTEN = re.compile(r"#\d+$")
"""Name of a half-written file. LocalStore writes a file under its name and a number, and then renames it."""


def _sorted_files(root: Path, prefix: str, after: str | None) -> list[Stored]:
    """Return the files under a prefix in the order of their keys.

    It reads metadata only of files after `after`: a job's log can have 200,000 files.
    """
    names = (os.path.join(folder, name) for folder, _, files in os.walk(root / prefix) for name in files)  # noqa: PTH118
    skipped = len(str(root)) + 1
    keys = [name[skipped:] for name in names if not _HALF_WRITTEN.search(name)]
    found = []
    for key in sorted(key for key in keys if after is None or key > after):
        try:
            facts = (root / key).stat()
        except FileNotFoundError:
            continue  # deleted just now
        found.append(Stored(key, facts.st_size, datetime.fromtimestamp(facts.st_mtime, UTC)))
    return found


def _copy_file(root: Path, source: str, target: str) -> None:
    """Copy a file under its final name only when it is complete, as LocalStore writes."""
    path = root / target
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}#0")
    with os.fdopen(_open_inside(root, source), "rb") as read, half.open("wb") as written:
        shutil.copyfileobj(read, written, _COPIED_BYTES)
    half.replace(path)


def _open_inside(root: Path, key: str) -> int:
    """Open a file that ranks wrote, following no link below the first folder: they could point anywhere."""
    first, *folders, name = key.split("/")
    descriptor = os.open(root / first, os.O_RDONLY | os.O_DIRECTORY)
    for part, flags in [*((one, os.O_DIRECTORY) for one in folders), (name, os.O_NONBLOCK)]:
        try:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{key} is no file")
    return descriptor


def _subfolders(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _remove_folder(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _remove_half_written(root: Path, before_s: float) -> int:
    removed = 0
    for folder, _, names in os.walk(root):
        for path in (Path(folder) / name for name in names if _HALF_WRITTEN.search(name)):
            with suppress(FileNotFoundError):  # finished, or deleted
                if path.stat().st_mtime < before_s:
                    path.unlink()
                    removed += 1
    return removed


@contextmanager
def _errors_as_unavailable() -> Iterator[None]:
    """Raise Unavailable for an error of the storage."""
    try:
        yield
    except (BaseError, OSError) as error:
        said = f"{type(error).__name__}: {short(str(error))}"
        refused = _REFUSED.search(str(error))
        if refused is not None and not may_pass(int(refused[1])):
            raise Unavailable(
                f"object storage refuses the service ({said}); an operator checks HEADWAY_STORAGE_URL and its keys"
            ) from error
        raise Unavailable(f"{STORAGE_AWAY} ({said})") from error
