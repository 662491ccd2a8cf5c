"""Working folders as uploads, addressed by the digest of their bytes."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from datetime import datetime
from pathlib import PurePosixPath

from headway.archives import ArchiveRefused, TooMuch, members
from service.domain.access import Principal
from service.domain.errors import InvalidField, TooLarge
from service.usecases.outside_ports import Storage
from service.usecases.ports import Transactions
from service.usecases.records import BundleRecord

MAX_FILES = 20_000
MAX_UNPACKED_FACTOR = 20
"""Unpacked, a bundle may be at most this many times the upload limit: a bomb must not fill a node's disk."""


def bundle_key(digest: str) -> str:
    """Where a bundle lies in object storage."""
    return f"bundles/{digest.removeprefix('sha256:')}.tar.gz"


async def store_bundle(
    transactions: Transactions,
    storage: Storage,
    data: bytes,
    *,
    uploader: Principal,
    max_bytes: int,
    now: datetime,
) -> tuple[BundleRecord, bool]:
    """The bundle, and whether it is new. Bytes are stored before the row: a row is a promise.

    Raises:
        InvalidField: not a tar.gz, or a path in it leaves the folder.
        TooLarge: over the limit, packed or unpacked.
    """
    files = inspect_bundle(data, max_bytes=max_bytes)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    async with transactions.begin() as tx:
        known = await tx.bundles.get(digest)
        if known is not None:
            await tx.bundles.add(known, now)  # as if it were new: it waits for a submit again
            await tx.bundles.uploaded(digest, uploader)
            return known, False
    await storage.put(bundle_key(digest), data)
    bundle = BundleRecord(digest, len(data), files)
    async with transactions.begin() as tx:
        await tx.bundles.add(bundle, now)
        await tx.bundles.uploaded(digest, uploader)
    return bundle, True


def inspect_bundle(data: bytes, *, max_bytes: int) -> tuple[str, ...]:
    """The paths of the regular files in a bundle, after every check.

    Raises:
        InvalidField, TooLarge: as `store_bundle`.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"the bundle is over {max_bytes} bytes; exclude data and outputs with .headwayignore")
    files: list[str] = []
    most_bytes = MAX_UNPACKED_FACTOR * max_bytes
    try:
        with members(io.BytesIO(data), most_bytes=most_bytes, most_entries=MAX_FILES) as (_, entries):
            files += [str(PurePosixPath(entry.name)) for entry in entries if entry.isfile()]
    except TooMuch as error:
        raise TooLarge(f"the bundle cannot be taken: {error}") from error
    except ArchiveRefused as error:
        raise InvalidField("bundle", str(error)) from error
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InvalidField("bundle", f"the upload is not a readable tar.gz: {error}") from error
    return tuple(files)
