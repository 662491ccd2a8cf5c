"""Deletion of what has passed its retention: rows first, in short transactions, then the objects that only
they referred to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.domain.shared.errors import Unavailable
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.ports.upkeep import (
    BATCH,
    BUNDLES_KEPT,
    TIERS,
    ExpiringRows,
    Horizons,
    JobsDeleted,
    Tier,
    horizons,
)
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
    for doomed in ExpiringRows:
        await _in_batches(transactions, _rows(doomed, kept))
    for tier in TIERS:
        await _in_batches(transactions, _thinner(tier, now))
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


def _rows(doomed: ExpiringRows, kept: Horizons) -> Callable[[Transaction], Awaitable[bool]]:
    async def delete(tx: Transaction) -> bool:
        return await tx.retention.delete_rows(doomed, kept.of(doomed)) >= BATCH

    return delete


def _thinner(tier: Tier, now: datetime) -> Callable[[Transaction], Awaitable[bool]]:
    async def thin(tx: Transaction) -> bool:
        return await tx.retention.thin_metrics(tier, now)

    return thin


async def _in_batches(transactions: Transactions, work: Callable[[Transaction], Awaitable[bool]]) -> None:
    """Run the work in one transaction after another, until it reports that nothing is left."""
    more = True
    while more:
        async with transactions.begin() as tx:
            more = await work(tx)


async def _delete_objects(objects: StoredObjects, job_ids: Sequence[str]) -> str | None:
    try:
        for job_id in job_ids:
            for prefix in (log_prefix(job_id), checkpoint_prefix(job_id)):
                await objects.delete_folder(prefix)
    except Unavailable as error:
        return error.message
    return None
