"""Storage of checkpoints: a folder, or an object store.

Failures of either are `OSError`; a key that does not exist is `FileNotFoundError`, and an object store that does not answer
is `StorageAway`.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headway.contract.runtime import STORAGE_AWAY
from headway.contract.values.places import folder_of

Bytes: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Bytes | Iterable[Bytes]
"""Contents of an object, whole or in pieces."""
_RETRY_FOR = timedelta(seconds=30)
"""Retry limit for an object store that does not answer. Training waits, then the checkpoint fails."""
_STATUS = re.compile(r"status code: (\d{3})")
_NO_ANSWER = re.compile(r"HTTP error|error sending request|timed? ?out|connection", re.IGNORECASE)
WHAT_REFUSED = (
    "; check HEADWAY_STORAGE_URL of the service, and the rights of its keys or of those in env of the job"
)


class StorageAway(OSError):
    """Raised when an object store did not answer within the retry limit: no connection, a timeout, 5xx or 429.

    The message contains `contract.runtime.STORAGE_AWAY`. A later attempt may succeed.
    """


def may_pass(status: int) -> bool:
    """Return True for an HTTP status that a later attempt may not meet again; 0 means no answer."""
    return status in {0, 408, 429} or status >= 500


def is_away(error: str) -> bool:
    """Return True if this text of an error of obstore says that the store did not answer, or may answer otherwise later."""
    status = _STATUS.search(error)
    if status is not None:
        return may_pass(int(status[1]))
    return _NO_ANSWER.search(error) is not None


class Storage(Protocol):
    """Objects by key, under one URI. `put` is atomic: a reader sees the old object or the new one."""

    uri: str

    def put(self, key: str, data: Data) -> None:
        """Store an object and replace any previous one."""

    def get(self, key: str) -> bytearray:
        """Return an object as a whole."""
        ...

    def keys(self) -> list[str]:
        """Return every key, in no particular order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""


def open_storage(uri: str, keys: Path | None = None) -> Storage:
    """Open the storage at a URI: `file:///folder` (or a bare path), `s3://`, `gs://`, `az://`, ….

    An object store takes its credentials and endpoint from the file `keys`, which it reads again before they
    expire. If that file holds a ticket, the service signs the requests. Without a file, the store uses the
    provider's usual environment variables.
    """
    folder = folder_of(uri)
    if folder is not None:
        return Folder(folder)
    if keys is not None and "ticket" in json.loads(keys.read_text(encoding="utf-8")):
        from headway.storage.signed import SignedStore  # noqa: PLC0415  # few jobs need it

        return SignedStore(uri, keys)
    return ObjectStore(uri, keys)


class Folder:
    """Files under a folder, which every host of the job must share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.uri = root.as_uri()

    def put(self, key: str, data: Data) -> None:
        """Write a temporary file and rename it: a crash leaves the old file or the new one."""
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("wb", buffering=0) as file:
                for piece in [data] if isinstance(data, Bytes) else data:
                    _write(file, piece)
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                path.parent.rmdir()
            raise
        _sync(path.parent)

    def get(self, key: str) -> bytearray:
        """Return the bytes of the file."""
        with (self._root / key).open("rb", buffering=0) as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            view = memoryview(data)
            while view and (count := file.readinto(view)):
                view = view[count:]
        return data[: len(data) - len(view)] if view else data

    def keys(self) -> list[str]:
        """Return paths under the folder, temporary files included; none if the folder does not exist.

        Raises:
            OSError: the folder cannot be read, so its contents are unknown.
        """
        return [
            str((Path(folder) / name).relative_to(self._root))
            for folder, _, files in os.walk(self._root, onerror=_unless_gone)
            for name in files
        ]

    def delete(self, key: str) -> None:
        """Remove the file, and its folder if that is then empty."""
        path = self._root / key
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()


def _write(file: io.FileIO, piece: Bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


def _sync(folder: Path) -> None:
    """Write the folder's names to disk, so that after a crash no manifest exists without its parts."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_gone(error: OSError) -> None:
    """Ignore a missing folder, which holds no keys; raise any other error, because keys may exist."""
    if not isinstance(error, FileNotFoundError):
        raise error


class ObjectStore:
    """Objects under a bucket and prefix, through obstore."""

    def __init__(self, uri: str, keys: Path | None = None) -> None:
        # Imported here because only jobs with an object store need the package.
        import obstore  # noqa: PLC0415
        from obstore.store import S3Store, from_url  # noqa: PLC0415

        self.uri = uri.rstrip("/")
        self._calls = obstore
        if uri.startswith("s3://"):
            # http is allowed, because a private store often has no certificate; AWS is reached by https.
            self._store: Any = S3Store.from_url(
                uri,
                client_options={"allow_http": True},
                retry_config={"retry_timeout": _RETRY_FOR},
                **({} if keys is None else _Keys(keys).options()),
            )
        else:
            self._store = from_url(uri)

    def put(self, key: str, data: Data) -> None:
        """Upload an object; a large one in parts."""
        with _as_os_error(key):
            self._calls.put(self._store, key, data)

    def get(self, key: str) -> bytearray:
        """Download an object as a whole."""
        with _as_os_error(key):
            return bytearray(self._calls.get(self._store, key).bytes())

    def keys(self) -> list[str]:
        """Return all keys under the prefix."""
        with _as_os_error("the list of checkpoints"):
            return [entry["path"] for batch in self._calls.list(self._store) for entry in batch]

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        with suppress(FileNotFoundError), _as_os_error(key):
            self._calls.delete(self._store, key)


class _Keys:
    """Keys from a file (`contract.credentials.StorageCredentials` as JSON), read again before they expire."""

    refresh_threshold = timedelta(minutes=5)
    """Remaining validity below which obstore asks for new keys."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> dict[str, Any]:
        kept = self._read()
        return {
            "access_key_id": kept["access_key_id"],
            "secret_access_key": kept["secret_access_key"],
            "token": kept["session_token"],
            "expires_at": datetime.fromisoformat(kept["expires_at"]),
        }

    def options(self) -> dict[str, Any]:
        """Return the options with which to open a store."""
        kept = self._read()
        place = {"endpoint": kept.get("endpoint_url"), "region": kept.get("region")}
        return {**{name: value for name, value in place.items() if value}, "credential_provider": self}

    def _read(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return kept


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(f"{what}: not in the store") from error
    except BaseError as error:
        said = f"{type(error).__name__}: {short(str(error))}"
        if is_away(str(error)):
            raise StorageAway(f"{STORAGE_AWAY} ({what}: {said})") from error
        raise OSError(f"{what}: {said}{WHAT_REFUSED}") from error


def short(error: str) -> str:
    """Return the text of an error of obstore on one line, without its debug representation and at most 300 characters."""
    return " ".join(error.partition("Debug source:")[0].split())[:300]
