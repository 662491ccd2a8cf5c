"""Bundles: uploaded working folders, addressed by the digest of their bytes."""

from __future__ import annotations

import asyncio
import hashlib
import io
from datetime import datetime

from headway.archives import ArchiveRefused, TooMuch, members
from headway.layout import MAX_ENTRIES
from service.domain.identity.access import Principal
from service.domain.shared.errors import BundleRefused, TooLarge
from service.usecases.ports.storage import BundleRecord, StoredObjects
from service.usecases.ports.transactions import Transactions

MAX_UNPACKED_FACTOR = 20
"""Maximum size of an unpacked bundle, as a multiple of the upload limit.

It keeps archive bombs from filling a node's disk.
"""
_USUAL_BYTES = 64 << 20
_MOST_RATIO = 100
"""Ratio of unpacked to packed bytes above which a bundle of more than `_USUAL_BYTES` is refused as a trap."""


def bundle_key(digest: str) -> str:
    """Return the key of a bundle in object storage."""
    return f"bundles/{digest.removeprefix('sha256:')}.tar.gz"


async def store_bundle(
    transactions: Transactions,
    storage: StoredObjects,
    data: bytes,
    *,
    uploader: Principal,
    max_bytes: int,
    now: datetime,
) -> tuple[BundleRecord, bool]:
    """Check and store a bundle.

    Return it, and True if it is new. The bytes are stored before the row, which promises them.

    Raises:
        BundleRefused: not a tar.gz, or something in it could leave the folder.
        TooLarge: over the limit, packed or unpacked.
    """
    # In a thread, since unpacking takes seconds, in which the service goes on answering.
    files = await asyncio.to_thread(inspect_bundle, data, max_bytes=max_bytes)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    async with transactions.begin() as tx:
        known = await tx.bundles.get(digest)
        if known is not None:
            await tx.bundles.add(known, now)  # restarts its retention, as for a new upload
            await tx.bundles.uploaded(digest, uploader)
            return known, False
    await storage.put(bundle_key(digest), data)
    bundle = BundleRecord(digest, len(data), files)
    async with transactions.begin() as tx:
        await tx.bundles.add(bundle, now)
        await tx.bundles.uploaded(digest, uploader)
    return bundle, True


def inspect_bundle(data: bytes, *, max_bytes: int) -> tuple[str, ...]:
    """Check the content of a bundle. Return the paths of its regular files.

    Raises:
        BundleRefused, TooLarge: as `store_bundle`.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"the bundle is over {max_bytes} bytes; exclude data and outputs with .headwayignore")
    files: list[str] = []
    most_bytes = min(MAX_UNPACKED_FACTOR * max_bytes, max(_USUAL_BYTES, _MOST_RATIO * len(data)))
    try:
        with members(io.BytesIO(data), most_bytes=most_bytes, most_entries=MAX_ENTRIES) as entries:
            files += ["/".join(entry.path) for entry in entries if entry.kind == "file"]
    except TooMuch as error:
        raise TooLarge(f"the bundle is too large: {error}") from error
    except ArchiveRefused as error:
        raise BundleRefused(str(error)) from error
    return tuple(files)
