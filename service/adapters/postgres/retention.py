"""Delete what is over, a batch at a time: a backlog of a month must not lock anything for seconds."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, Text, bindparam, delete, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from service.adapters.postgres.expressions import one_of
from service.adapters.postgres.ledger_tables import leases, ledger_state
from service.adapters.postgres.money_tables import ENDED_SQL, machines
from service.adapters.postgres.tables import TERMINAL_SQL, bundles, jobs, nodes, slot_grants
from service.domain.rental.machines import ENDED
from service.usecases.retention_ports import BATCH, MAX_ROUNDS, MAX_SIMULATIONS, Doomed, JobsDeleted

_JOBS_AT_ONCE = 50
_OF_JOBS = ("metrics", "events", "rank_exits", "commands", "slot_grants", "measurements", "allocations")
"""What hangs on a job and may be much; the rest goes with its row."""

_ROWS: Final[dict[Doomed, tuple[str, str]]] = {
    Doomed.COMMANDS: ("commands", "acknowledged_at < :before"),
    Doomed.ROUNDS: (
        "rounds",
        "at < greatest(:before, "  # noqa: S608 - a number of our own
        f"(SELECT at FROM rounds AS newest ORDER BY at DESC, id DESC OFFSET {MAX_ROUNDS} LIMIT 1))",
    ),
    Doomed.SIMULATIONS: (
        "simulations",
        "finished_at < :before OR finished_at IS NOT NULL AND created_at < "  # noqa: S608
        f"(SELECT created_at FROM simulations AS newest ORDER BY created_at DESC, id DESC OFFSET {MAX_SIMULATIONS} "
        "LIMIT 1)",
    ),
    Doomed.PROCESSES: ("api_processes", "seen_at < :before"),
    Doomed.GRANTS: ("slot_grants", "released_at < :before"),
    Doomed.QUARANTINES: ("quarantines", "released_at < :before"),
    Doomed.CHARGES: ("charges", "hour < :before"),
    Doomed.LEASES: ("leases", "to_at < :before"),
    Doomed.MACHINES: ("machines", f"{ENDED_SQL} AND state_since < :before"),
    Doomed.BUDGET_NOTICES: ("budget_notices", "given_at < :before"),
    Doomed.TOKENS: ("tokens", "least(revoked_at, expires_at) < :before"),
    Doomed.JOIN_TOKENS: ("join_tokens", "expires_at < :before"),
    Doomed.LOGINS: ("logins", "expires_at < :before"),
    Doomed.AUDIT: ("audit", "at < least(:before, now() - interval '366 days')"),
}

_UNUSED_BUNDLES = text(
    """
    DELETE FROM bundles WHERE digest = ANY(:digests)
        AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec->>'bundle' = bundles.digest)
    RETURNING digest
    """
).bindparams(bindparam("digests", type_=ARRAY(Text)))


class PostgresRetention:
    """Implements `usecases.retention_ports.Retention`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def accrued_at(self) -> datetime | None:
        """How far the ledger is."""
        query = select(ledger_state.c.accrued_at)
        found: datetime | None = (await self._connection.execute(query)).scalar_one_or_none()
        return found

    async def delete_rows(self, doomed: Doomed, before: datetime) -> int:
        """Delete a batch of rows of a kind."""
        if doomed in {Doomed.RENTED_NODES, Doomed.NODES}:
            return await self._delete_nodes(before, rented=doomed is Doomed.RENTED_NODES)
        return await delete_batch(self._connection, *_ROWS[doomed], before=before)

    async def delete_jobs(self, before: datetime) -> JobsDeleted:
        """Delete jobs that ended before, first all that hangs on them."""
        query = select(jobs.c.id).where(jobs.c.finished_at < before).limit(_JOBS_AT_ONCE)
        old = list((await self._connection.execute(query)).scalars())
        left = BATCH if old else 0
        for table in _OF_JOBS if old else ():
            left -= await delete_batch(self._connection, table, "job_id = ANY(:ids)", left, ids=old)
            if left <= 0:
                return JobsDeleted((), more=True)
        gone = await self._connection.execute(delete(jobs).where(one_of(jobs.c.id, old)).returning(jobs.c.id))
        return JobsDeleted(list(gone.scalars()), more=len(old) == _JOBS_AT_ONCE)

    async def unused_bundles(self, before: datetime) -> list[str]:
        """Digests of bundles that nobody uses; their rows are deleted.

        Locked first and looked at then: a submit that has found its bundle holds its row until the job is there.
        """
        query = (
            select(bundles.c.digest).where(bundles.c.created_at < before).with_for_update(skip_locked=True)
        )
        old = list((await self._connection.execute(query)).scalars())
        return list((await self._connection.execute(_UNUSED_BUNDLES, {"digests": old})).scalars())

    async def _delete_nodes(self, before: datetime, *, rented: bool) -> int:
        """Nodes that are LOST for good and of which nothing is kept any more, with the commands that they never took up."""
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
        gone = list((await self._connection.execute(query)).scalars())
        if not gone:
            return 0
        if await delete_batch(self._connection, "commands", "node_id = ANY(:ids)", ids=gone) == BATCH:
            return BATCH
        await self._connection.execute(delete(nodes).where(one_of(nodes.c.id, gone)))
        return len(gone)


class PostgresOwners:
    """Implements `usecases.retention_ports.Owners`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def jobs(self, job_ids: Collection[str]) -> set[str]:
        """Those of the jobs that there are."""
        query = select(jobs.c.id).where(one_of(jobs.c.id, job_ids))
        return set((await self._connection.execute(query)).scalars())

    async def bundles(self, digests: Collection[str]) -> set[str]:
        """Those of the bundles that there are."""
        query = select(bundles.c.digest).where(one_of(bundles.c.digest, digests))
        return set((await self._connection.execute(query)).scalars())

    async def live_jobs(self) -> list[str]:
        """Jobs that have not ended."""
        query = select(jobs.c.id).where(text(f"NOT ({TERMINAL_SQL})"), jobs.c.started_at.is_not(None))
        return list((await self._connection.execute(query)).scalars())


async def delete_batch(
    connection: AsyncConnection, table: str, where: str, limit: int = BATCH, **values: Any
) -> int:
    """Delete at most `limit` rows of a table; how many. By their places in it, so that the limit costs nothing."""
    statement = (
        f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {where} LIMIT :limit))"  # noqa: S608
    )
    query = text(statement)
    if "ids" in values:
        query = query.bindparams(bindparam("ids", type_=ARRAY(Text)))
    return (await connection.execute(query, {"limit": limit, **values})).rowcount
