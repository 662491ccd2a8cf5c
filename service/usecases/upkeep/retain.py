"""Deletion of what has passed its retention: rows first, in short transactions, then the objects that only
they referred to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.domain.shared.errors import Unavailable
from service.domain.shared.retention import BATCH, BUNDLES_KEPT, TIERS, ExpiringRows, Horizons, horizons
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transactions
from service.usecases.ports.upkeep import JobsDeleted
from service.usecases.storage.checkpoints import checkpoint_prefix
from service.usecases.storage.logs import log_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The result of a retention pass.

    `problem` says why objects of deleted jobs remain; the next sweep deletes them.
    """

    jobs: int
    bundles: int
    problem: str | None = None


async def retain(
    transactions: Transactions, objects: StoredObjects, *, keep_days: int, now: datetime
) -> Retained:
    """Delete until nothing is left to delete.

    Rows go first. An object whose deletion fails is then unreferenced garbage, and no row refers to a missing
    object. Objects of bundles are left to the sweep, which checks their age, since the same folder may just
    be uploaded again.

    Raises:
        Unavailable: the database does not answer.
    """
    async with transactions.begin() as tx:
        kept = horizons(now, keep_days, await tx.spending.accrued_at())
    job_ids = await _delete_jobs(transactions, kept)
    for kind in ExpiringRows:
        deleted = BATCH
        while deleted >= BATCH:
            async with transactions.begin() as tx:
                deleted = await tx.retention.delete_rows(kind, kept.of(kind))
    for tier in TIERS:
        more = True
        while more:
            async with transactions.begin() as tx:
                more = await tx.retention.thin_metrics(tier, now)
    async with transactions.begin() as tx:
        digests = await tx.retention.unused_bundles(now - BUNDLES_KEPT)
    problem = await _delete_objects(objects, job_ids)
    return Retained(jobs=len(job_ids), bundles=len(digests), problem=problem)


async def _delete_jobs(transactions: Transactions, kept: Horizons) -> list[str]:
    gone: list[str] = []
    deleted = JobsDeleted((), more=True)
    while deleted.more:
        async with transactions.begin() as tx:
            deleted = await tx.retention.delete_jobs(kept.jobs)
        gone += deleted.job_ids
    return gone


async def _delete_objects(objects: StoredObjects, job_ids: Sequence[str]) -> str | None:
    try:
        for job_id in job_ids:
            for prefix in (log_prefix(job_id), checkpoint_prefix(job_id)):
                await objects.delete_folder(prefix)
    except Unavailable as error:
        return error.message
    return None
