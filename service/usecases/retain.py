"""Delete what is over: rows, then the objects that only they referred to."""

from __future__ import annotations

from datetime import datetime, timedelta

from service.usecases.bundles import bundle_key
from service.usecases.logs import log_prefix
from service.usecases.ports import Storage, Transactions

BUNDLE_KEPT = timedelta(days=1)
"""An upload may wait this long for the submit that refers to it."""


async def retain(transactions: Transactions, storage: Storage, *, keep_days: int, now: datetime) -> int:
    """How many jobs and bundles are gone.

    Rows go first: an object whose deletion fails is garbage that nobody refers to, never a promise
    that is broken.
    """
    async with transactions.begin() as tx:
        jobs = await tx.retention.delete_old(now, keep_days)
        digests = await tx.retention.unused_bundles(now - BUNDLE_KEPT)
    for job_id in jobs:
        for prefix in (log_prefix(job_id), f"checkpoints/{job_id}/"):
            async for key in storage.list(prefix):
                await storage.delete(key)
    for digest in digests:
        await storage.delete(bundle_key(digest))
    return len(jobs) + len(digests)
