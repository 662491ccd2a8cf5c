"""Deletion of old rows in batches, so that even a backlog of a month locks nothing for seconds."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from sqlalchemy import delete, literal, select, text

from headway.contract.agents import NodeState
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.tables.core import TERMINAL_SQL, bundles, jobs, nodes, slot_grants
from service.adapters.postgres.tables.ledger import leases
from service.adapters.postgres.tables.rental import ENDED_SQL, machines
from service.adapters.postgres.upkeep.batches import delete_batch
from service.adapters.postgres.upkeep.thinning import Thinning
from service.domain.rental.machines import ENDED
from service.usecases.ports.upkeep import (
    BATCH,
    MAX_ROUNDS,
    MAX_SIMULATIONS,
    ExpiringRows,
    JobsDeleted,
    Retention,
)

_JOBS_AT_ONCE = 50
_OF_JOBS = ("metrics", "events", "rank_exits", "commands", "slot_grants", "measurements", "allocations")
"""Tables with many rows per job, deleted in batches. The rest goes with the job's row (ON DELETE CASCADE)."""

_ROWS: Final[dict[ExpiringRows, tuple[str, str]]] = {
    ExpiringRows.COMMANDS: ("commands", "acknowledged_at < :before"),
    ExpiringRows.ROUNDS: (
        "rounds",
        "at < greatest(:before, "  # noqa: S608 - constants
        f"(SELECT at FROM rounds AS newest ORDER BY at DESC, id DESC OFFSET {MAX_ROUNDS} LIMIT 1))",
    ),
    ExpiringRows.SIMULATIONS: (
        "simulations",
        "finished_at < :before OR finished_at IS NOT NULL AND created_at < "  # noqa: S608
        f"(SELECT created_at FROM simulations AS newest ORDER BY created_at DESC, id DESC OFFSET {MAX_SIMULATIONS} "
        "LIMIT 1)",
    ),
    ExpiringRows.PROCESSES: ("api_processes", "seen_at < :before"),
    ExpiringRows.GRANTS: ("slot_grants", "released_at < :before"),
    ExpiringRows.QUARANTINES: ("quarantines", "released_at < :before"),
    ExpiringRows.CHARGES: ("charges", "hour < :before"),
    ExpiringRows.LEASES: ("leases", "to_at < :before"),
    ExpiringRows.MACHINES: ("machines", f"{ENDED_SQL} AND state_since < :before"),
    ExpiringRows.BUDGET_NOTICES: ("budget_notices", "given_at < :before"),
    ExpiringRows.TOKENS: ("tokens", "least(revoked_at, expires_at) < :before"),
    ExpiringRows.JOIN_TOKENS: ("join_tokens", "expires_at < :before"),
    ExpiringRows.LOGINS: ("logins", "expires_at < :before"),
    ExpiringRows.AUDIT: ("audit", "at < least(:before, now() - interval '366 days')"),
}

_UNUSED_BUNDLES = text(
    """
    DELETE FROM bundles WHERE digest = ANY(CAST(:digests AS text[]))
        AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec->>'bundle' = bundles.digest)
    RETURNING digest
    """
)


class PostgresRetention(Thinning, Retention):
    """Retention in PostgreSQL."""

    async def delete_rows(self, kind: ExpiringRows, before: datetime) -> int:
        if kind in {ExpiringRows.RENTED_NODES, ExpiringRows.NODES}:
            return await self._delete_nodes(before, rented=kind is ExpiringRows.RENTED_NODES)
        return await delete_batch(self._session, *_ROWS[kind], before=before)

    async def delete_jobs(self, before: datetime) -> JobsDeleted:
        query = select(jobs.c.id).where(jobs.c.finished_at < before).limit(_JOBS_AT_ONCE)
        old = await self._session.scalars(query)
        left = BATCH if old else 0
        for table in _OF_JOBS if old else ():
            left -= await delete_batch(
                self._session, table, "job_id = ANY(CAST(:ids AS text[]))", left, ids=old
            )
            if left <= 0:
                return JobsDeleted((), more=True)
        statement = delete(jobs).where(one_of(jobs.c.id, old)).returning(jobs.c.id)
        return JobsDeleted(await self._session.scalars(statement), more=len(old) == _JOBS_AT_ONCE)

    async def unused_bundles(self, before: datetime) -> list[str]:
        # The rows are locked before the check. A submit that found its bundle holds that row's lock until
        # the job is stored.
        query = (
            select(bundles.c.digest).where(bundles.c.created_at < before).with_for_update(skip_locked=True)
        )
        old = await self._session.scalars(query)
        return await self._session.scalars(_UNUSED_BUNDLES, {"digests": old})

    async def _delete_nodes(self, before: datetime, *, rented: bool) -> int:
        """Delete a batch of LOST nodes without grants, open leases or open machines, and their commands."""
        granted = select(slot_grants.c.id).where(slot_grants.c.node_id == nodes.c.id)
        paid = select(leases.c.id).where(leases.c.node_id == nodes.c.id, leases.c.open)
        billed = select(machines.c.id).where(
            machines.c.id == nodes.c.machine_id, machines.c.state.not_in(ENDED)
        )
        query = (
            select(nodes.c.id)
            .where(
                nodes.c.state == NodeState.LOST,
                nodes.c.seen_at < before,
                nodes.c.machine_id.is_not(None) if rented else literal(value=True),
                ~granted.exists(),
                ~paid.exists(),
                ~billed.exists(),
            )
            .limit(BATCH)
            .with_for_update(skip_locked=True)
        )
        gone = await self._session.scalars(query)
        if not gone:
            return 0
        if (
            await delete_batch(self._session, "commands", "node_id = ANY(CAST(:ids AS text[]))", ids=gone)
            == BATCH
        ):
            return BATCH
        await self._session.execute(delete(nodes).where(one_of(nodes.c.id, gone)))
        return len(gone)

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        query = select(jobs.c.id).where(one_of(jobs.c.id, job_ids))
        return set(await self._session.scalars(query))

    async def existing_bundles(self, digests: Collection[str]) -> set[str]:
        query = select(bundles.c.digest).where(one_of(bundles.c.digest, digests))
        return set(await self._session.scalars(query))

    async def live_jobs(self) -> list[str]:
        query = select(jobs.c.id).where(text(f"NOT ({TERMINAL_SQL})"), jobs.c.started_at.is_not(None))
        return await self._session.scalars(query)
