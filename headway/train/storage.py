"""Where checkpoints are kept: a folder, or an object store.

Failures of either are `OSError`; a key that does not exist is `FileNotFoundError`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headway.contract.places import folder_of

Bytes: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Bytes | Iterable[Bytes]
"""The contents of an object, whole or in pieces."""
_RETRY_FOR = timedelta(seconds=30)
"""An object store that does not answer holds up training for so long; then the checkpoint has failed."""


class Storage(Protocol):
    """Objects by key, under one URI. `put` is atomic: a reader sees the old object or the new one."""

    uri: str

    def put(self, key: str, data: Data) -> None:
        """Store an object, in place of what was there."""

    def get(self, key: str) -> bytearray:
        """An object whole."""
        ...

    def keys(self) -> list[str]:
        """Every key, in no order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is absent is no error."""


def open_storage(uri: str, keys: Path | None = None) -> Storage:
    """The storage at a URI: `file:///folder` (or a bare path), `s3://`, `gs://`, `az://`, ….

    An object store takes its credentials and endpoint from a file, `keys`, which is read again before they expire, or has the
    service sign its requests if there is a ticket in that file; without one it takes them from the provider's usual
    environment variables.
    """
    folder = folder_of(uri)
    if folder is not None:
        return Folder(folder)
    if keys is not None and "ticket" in json.loads(keys.read_text()):
        from headway.train.signed import SignedStore  # noqa: PLC0415  # which few jobs need

        return SignedStore(uri, keys)
    return ObjectStore(uri, keys)


class Folder:
    """Files under a folder, which every host of the job must share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.uri = root.as_uri()

    def put(self, key: str, data: Data) -> None:
        """Write beside, then rename: a crash leaves the old file or the new one."""
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
        """The file's bytes."""
        with (self._root / key).open("rb", buffering=0) as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            view = memoryview(data)
            while view and (count := file.readinto(view)):
                view = view[count:]
        return data[: len(data) - len(view)] if view else data

    def keys(self) -> list[str]:
        """Paths under the folder, temporary ones included; none when there is no such folder.

        Raises:
            OSError: the folder cannot be read, so nobody knows what is in it.
        """
        return [
            str((Path(folder) / name).relative_to(self._root))
            for folder, _, files in os.walk(self._root, onerror=_unless_gone)
            for name in files
        ]

    def delete(self, key: str) -> None:
        """Remove the file, and its folder once that is empty."""
        path = self._root / key
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()


def _write(file: io.FileIO, piece: Bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


def _sync(folder: Path) -> None:
    """Make the names in a folder outlive the host: a manifest must not do so without the parts before it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_gone(error: OSError) -> None:
    """What is not there, or was deleted meanwhile, holds no keys; what cannot be read may hold some."""
    if not isinstance(error, FileNotFoundError):
        raise error


class ObjectStore:
    """Objects under a bucket and prefix, through obstore."""

    def __init__(self, uri: str, keys: Path | None = None) -> None:
        # In a function, since only jobs with an object store need the package.
        import obstore  # noqa: PLC0415
        from obstore.store import S3Store, from_url  # noqa: PLC0415

        self.uri = uri.rstrip("/")
        self._calls = obstore
        if uri.startswith("s3://"):
            # A store of one's own often has no certificate; AWS itself is reached by https anyway.
            self._store: Any = S3Store.from_url(
                uri,
                client_options={"allow_http": True},
                retry_config={"retry_timeout": _RETRY_FOR},
                **({} if keys is None else _Keys(keys).options()),
            )
        else:
            self._store = from_url(uri)

    def put(self, key: str, data: Data) -> None:
        """Upload the object; large ones in parts."""
        with _as_os_error(key):
            self._calls.put(self._store, key, data)

    def get(self, key: str) -> bytearray:
        """Download the object."""
        with _as_os_error(key):
            return bytearray(self._calls.get(self._store, key).bytes())

    def keys(self) -> list[str]:
        """Keys under the prefix."""
        with _as_os_error("the list of checkpoints"):
            return [entry["path"] for batch in self._calls.list(self._store) for entry in batch]

    def delete(self, key: str) -> None:
        """Remove the object."""
        with suppress(FileNotFoundError), _as_os_error(key):
            self._calls.delete(self._store, key)


class _Keys:
    """The keys in a file, `contract.credentials.StorageCredentials` as JSON, read again in time."""

    refresh_threshold = timedelta(minutes=5)
    """obstore asks again once they are valid for no longer than this."""

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
        """How to open a store with them."""
        kept = self._read()
        place = {"endpoint": kept.get("endpoint_url"), "region": kept.get("region")}
        return {**{name: value for name, value in place.items() if value}, "credential_provider": self}

    def _read(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self._path.read_text())
        return kept


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(f"{what}: not in the store") from error
    except BaseError as error:
        raise OSError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
