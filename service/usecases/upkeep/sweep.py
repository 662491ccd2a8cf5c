"""Clean-up that reads much data: histories of jobs that run for months, and unreferenced objects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.shared.retention import BATCH, BUNDLES_KEPT, CAPPED_AFTER, Horizons, horizons
from service.usecases.ports.storage import Stored, StoredObjects
from service.usecases.ports.transactions import Transactions
from service.usecases.storage.bundles import bundle_key
from service.usecases.storage.logs import log_prefix, received_at

MAX_LOG_BYTES = 4 << 30
"""Maximum size of a job's logs in bytes. The oldest output is deleted first."""
MAX_LOG_PIECES = 200_000
_KEPT_SHARE = 0.9
"""Share of its limit to which an oversized log is cut, so that the next sweep need not cut it again."""
_AT_ONCE = 1_000
_ORPHANED_AFTER = timedelta(days=1)
"""Minimum age of an unreferenced folder that is deleted. A job has its id before its row, and an agent may
still send output of a job that was just deleted.
"""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_JOB_ID = re.compile(rf"^j[{_ALPHABET}]{{8,40}}$")
_BUNDLE = re.compile(r"^bundles/([0-9a-f]{64})\.tar\.gz$")
_RANDOM_BITS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a sweep: rows of old history, folders of deleted jobs, bundles without a row, pieces of
    logs.
    """

    rows: int
    folders: int
    bundles: int
    log_pieces: int

    @property
    def did_something(self) -> bool:
        """Return True if anything was deleted."""
        return bool(self.rows or self.folders or self.bundles or self.log_pieces)


async def sweep(
    transactions: Transactions, objects: StoredObjects, *, keep_days: int, now: datetime
) -> Swept:
    """Run one pass over all jobs and objects.

    Raises:
        Unavailable: the database or object storage does not answer. Completed work stays done; the next pass
            goes on.
    """
    async with transactions.begin() as tx:
        kept = horizons(now, keep_days, await tx.spending.accrued_at())
    rows = await _shorten_histories(transactions, kept)
    folders = 0
    for root in ("logs/", "checkpoints/"):
        folders += await _delete_orphans(transactions, objects, root, now)
    bundles = await _delete_unknown_bundles(transactions, objects, now)
    await objects.delete_partial(now - BUNDLES_KEPT)
    pieces = await _cut_logs(transactions, objects, now - timedelta(days=keep_days))
    return Swept(rows=rows, folders=folders, bundles=bundles, log_pieces=pieces)


async def _shorten_histories(transactions: Transactions, kept: Horizons) -> int:
    async with transactions.begin() as tx:
        job_ids = await tx.retention.long_lived(kept.now - min(CAPPED_AFTER, kept.now - kept.history))
    rows = 0
    for job_id in job_ids:
        gone = BATCH
        while gone >= BATCH:
            async with transactions.begin() as tx:
                gone = await tx.retention.thin_history(job_id, kept)
            rows += gone
    return rows


async def _delete_orphans(
    transactions: Transactions, objects: StoredObjects, root: str, now: datetime
) -> int:
    """Delete folders of deleted jobs whose deletion failed or that were written to afterwards. Return their number."""
    deleted = 0
    async for names in _chunks(objects.folders(root)):
        old = [name for name in names if _is_old_job(name, now)]
        async with transactions.begin() as tx:
            known = await tx.retention.existing_jobs(old)
        for name in sorted(set(old) - known):
            await objects.delete_folder(f"{root}{name}/")
            deleted += 1
    return deleted


def _is_old_job(name: str, now: datetime) -> bool:
    """Return True if the name is the id of a job older than a day. Other names are never deleted."""
    if not _JOB_ID.match(name):
        return False
    number = 0
    for digit in name[1:]:
        number = number * len(_ALPHABET) + _ALPHABET.index(digit)
    made_s = (number >> _RANDOM_BITS) / 1000
    return made_s < (now - _ORPHANED_AFTER).timestamp()


async def _delete_unknown_bundles(transactions: Transactions, objects: StoredObjects, now: datetime) -> int:
    deleted = 0
    found = (one.key async for one in objects.entries("bundles/") if one.at < now - BUNDLES_KEPT)
    async for keys in _chunks(found):
        digests = {f"sha256:{match[1]}" for match in map(_BUNDLE.match, keys) if match}
        async with transactions.begin() as tx:
            unknown = digests - await tx.retention.existing_bundles(digests)
        await objects.delete_all([bundle_key(digest) for digest in sorted(unknown)])
        deleted += len(unknown)
    return deleted


async def _cut_logs(transactions: Transactions, objects: StoredObjects, before: datetime) -> int:
    """Delete the oldest output of live jobs: output past its retention, and output beyond the limits per job."""
    async with transactions.begin() as tx:
        job_ids = await tx.retention.live_jobs()
    deleted = 0
    for job_id in job_ids:
        pieces = [one async for one in objects.entries(log_prefix(job_id))]
        surplus = surplus_pieces(pieces, before)
        for first in range(0, len(surplus), _AT_ONCE):
            await objects.delete_all(surplus[first : first + _AT_ONCE])
        deleted += len(surplus)
    return deleted


def surplus_pieces(
    pieces: Sequence[Stored],
    before: datetime,
    *,
    max_bytes: int = MAX_LOG_BYTES,
    max_pieces: int = MAX_LOG_PIECES,
) -> list[str]:
    """Return the keys of the oldest pieces of a job's output that exceed the limits.

    `pieces` are in order of receipt.
    """
    total_bytes, total = sum(one.size_bytes for one in pieces), len(pieces)
    over = total_bytes > max_bytes or total > max_pieces
    keep_bytes, keep = (
        (max_bytes * _KEPT_SHARE, max_pieces * _KEPT_SHARE) if over else (max_bytes, max_pieces)
    )
    surplus = []
    for one in pieces:
        if received_at(one.key) >= before and total_bytes <= keep_bytes and total <= keep:
            break
        surplus.append(one.key)
        total_bytes, total = total_bytes - one.size_bytes, total - 1
    return surplus


async def _chunks(items: AsyncIterator[str]) -> AsyncIterator[list[str]]:
    chunk: list[str] = []
    async for item in items:
        chunk.append(item)
        if len(chunk) == _AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
