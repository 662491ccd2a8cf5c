"""Deletion and thinning of old rows in batches, so that even a backlog of a month locks nothing for seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, literal, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.agents import NodeState
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.session import OnSession, Session
from service.adapters.postgres.tables.core import TERMINAL_SQL, bundles, jobs, metrics, nodes, slot_grants
from service.adapters.postgres.tables.rental import ENDED_SQL, leases, machines
from service.adapters.postgres.tables.upkeep import retention_cursors
from service.domain.rental.machines import ENDED
from service.domain.rental.timeline import MARKS, PHASE_MARKS
from service.domain.shared.retention import (
    BATCH,
    MAX_EVENTS,
    MAX_ROUNDS,
    MAX_SIMULATIONS,
    ExpiringRows,
    Horizons,
    Tier,
)
from service.usecases.ports.upkeep import JobsDeleted, Retention

_JOBS_AT_ONCE = 50
_OF_JOBS = (
    "metrics",
    "events",
    "rank_exits",
    "commands",
    "slot_grants",
    "measurements",
    "slow_link_measurements",
    "allocations",
)
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
    ExpiringRows.MESSAGES: ("webhook_messages", "created_at < :before"),
    ExpiringRows.AUDIT: ("audit", "at < least(:before, now() - interval '366 days')"),
}

_UNUSED_BUNDLES = text(
    """
    DELETE FROM bundles WHERE digest = ANY(CAST(:digests AS text[]))
        AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec->>'bundle' = bundles.digest)
    RETURNING digest
    """
)
_KEPT_OF_A_PLAN = 20
"""Number of generations whose statistics stay, for each configuration and batch plan."""

_THIN = text(
    """
    DELETE FROM metrics USING (
        SELECT later.id FROM metrics AS later
        CROSS JOIN LATERAL (
            SELECT at FROM metrics AS earlier
            WHERE earlier.job_id = later.job_id AND earlier.id < later.id AND earlier.name = later.name
            ORDER BY earlier.id DESC LIMIT 1
        ) AS before
        WHERE later.id > :after AND later.id <= :upto
            AND floor(extract(epoch FROM before.at) / :every_s) = floor(extract(epoch FROM later.at) / :every_s)
    ) AS surplus
    WHERE metrics.id = surplus.id
    """
)
"""Deletion of all but the first value of each job and name within `every_s`."""
_BACKWARDS = (text("SET LOCAL enable_bitmapscan = off"), text("SET LOCAL enable_sort = off"))
"""Planner settings that make the lookup of the previous value a backward index scan.

Right after many inserts the planner has no statistics of them. It would sort all values of a job for every
row.
"""

_TURNS = """
    SELECT generation, granted_at, ended_at, max(ended_before) OVER (ORDER BY generation) AS all_ended_before
    FROM (
        SELECT *, lag(coalesce(ended_at, 'infinity')) OVER (ORDER BY generation) AS ended_before
        FROM allocations WHERE job_id = :job
    ) AS generations
"""
_BEGIN_IN_TURN = text(
    f"""
    UPDATE allocations SET granted_at = all_ended_before
    FROM ({_TURNS}) AS turns
    WHERE allocations.job_id = :job AND allocations.generation = turns.generation
        AND all_ended_before < :before AND allocations.granted_at < all_ended_before
    """  # noqa: S608 - constants
)
"""Correction of the start of generations before the previous ones are deleted.

A generation's turn begins when the previous ones have ended. After this statement its own row says so.
"""
_FOLD = text(
    f"""
    WITH over AS (
        SELECT generation FROM ({_TURNS}) AS turns
        WHERE ended_at < :before AND coalesce(all_ended_before < :before, true)
            AND generation < (SELECT generation FROM jobs WHERE id = :job)
            AND NOT EXISTS (
                SELECT 1 FROM slot_grants WHERE job_id = :job AND released_at IS NULL
                    AND slot_grants.generation = turns.generation
            )
        ORDER BY generation LIMIT {BATCH}
    ), gone AS (
        DELETE FROM allocations USING over
        WHERE allocations.job_id = :job AND allocations.generation = over.generation
        RETURNING device_kind, size, extract(epoch FROM greatest(ended_at - granted_at, '0')) AS seconds
    ), folded AS (
        INSERT INTO past_allocations AS past (job_id, device_kind, seconds, slot_s)
        SELECT :job, device_kind, sum(seconds), sum(size * seconds) FROM gone GROUP BY device_kind
        ON CONFLICT (job_id, device_kind) DO UPDATE
            SET seconds = past.seconds + excluded.seconds, slot_s = past.slot_s + excluded.slot_s
    )
    SELECT count(*) FROM gone
    """  # noqa: S608
)
_CUT = text(
    f"""
    SELECT greatest(
        (SELECT max(sequence) FROM events WHERE job_id = :job AND kind <> 'first_step' AND at < :before),
        (SELECT max(sequence) FROM events WHERE job_id = :job AND kind <> 'first_step' AND at < :capped AND sequence <= (
            SELECT sequence FROM events WHERE job_id = :job ORDER BY sequence DESC OFFSET {MAX_EVENTS} LIMIT 1
        ))
    )
    """  # noqa: S608
)
"""Number of the last event to delete: it is too old, or exceeds the maximum number of events.

The time of a first step comes from the clock of its node and may be wrong, so it does not count.
"""
_LAST_PHASE = text(
    "SELECT max(sequence) FROM events WHERE job_id = :job AND sequence <= :cut AND kind = ANY(CAST(:kinds AS text[]))"
)


_EMPTY_SWEEPS = text(
    "DELETE FROM sweeps WHERE NOT EXISTS (SELECT FROM trials WHERE trials.sweep_id = sweeps.id)"
)
"""Deletion of sweeps whose last trial was deleted. A sweep that is being submitted is not visible before its trials."""
_NOT_WAITED_FOR = text(
    """
    NOT EXISTS (SELECT FROM predecessors JOIN jobs AS next ON next.id = predecessors.job_id
                WHERE predecessors.predecessor_id = jobs.id AND next.waits)
    """
)
"""Condition that no job waits for a job, whose end and files it would need."""


class PostgresRetention(OnSession, Retention):
    """Retention in PostgreSQL."""

    async def delete_rows(self, kind: ExpiringRows, before: datetime) -> int:
        if kind in {ExpiringRows.RENTED_NODES, ExpiringRows.NODES}:
            return await self._delete_nodes(before, rented=kind is ExpiringRows.RENTED_NODES)
        return await _delete_batch(self._session, *_ROWS[kind], before=before)

    async def delete_jobs(self, before: datetime) -> JobsDeleted:
        query = select(jobs.c.id).where(jobs.c.finished_at < before, _NOT_WAITED_FOR).limit(_JOBS_AT_ONCE)
        old = await self._session.scalars(query)
        left = BATCH if old else 0
        for table in _OF_JOBS if old else ():
            left -= await _delete_batch(
                self._session, table, "job_id = ANY(CAST(:ids AS text[]))", left, ids=old
            )
            if left <= 0:
                return JobsDeleted((), more=True)
        statement = delete(jobs).where(one_of(jobs.c.id, old), _NOT_WAITED_FOR).returning(jobs.c.id)
        deleted = await self._session.scalars(statement)
        if deleted:
            await self._session.execute(_EMPTY_SWEEPS)
        return JobsDeleted(deleted, more=len(old) == _JOBS_AT_ONCE)

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
            await _delete_batch(self._session, "commands", "node_id = ANY(CAST(:ids AS text[]))", ids=gone)
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

    async def thin_metrics(self, tier: Tier, now: datetime) -> bool:
        # Values are read in the order of their arrival and each only once. No value has a time in the
        # future.
        name = f"metrics to one in {tier.every.total_seconds():.0f} s"
        found = select(retention_cursors.c.position).where(retention_cursors.c.name == name)
        after = (await self._session.execute(found)).scalar_one_or_none() or 0
        query = (
            select(metrics.c.id, metrics.c.at).where(metrics.c.id > after).order_by(metrics.c.id).limit(BATCH)
        )
        upto, young = after, False
        for row in await self._session.rows(query):
            young = row.at >= now - tier.age
            if young:
                break
            upto = row.id
        if upto == after:
            return False
        values = {"after": after, "upto": upto, "every_s": tier.every.total_seconds()}
        for setting in _BACKWARDS:
            await self._session.execute(setting)
        await self._session.execute(_THIN, values)
        moved = upsert(retention_cursors).values(name=name, position=upto)
        await self._session.execute(
            moved.on_conflict_do_update(index_elements=["name"], set_={"position": upto})
        )
        return not young

    async def long_lived(self, submitted_before: datetime) -> list[str]:
        query = select(jobs.c.id).where(
            text(f"NOT ({TERMINAL_SQL})"), jobs.c.submitted_at < submitted_before, jobs.c.generation > 0
        )
        return await self._session.scalars(query.order_by(jobs.c.id))

    async def thin_history(self, job_id: str, horizons: Horizons) -> int:
        values = {"job": job_id, "before": horizons.history}
        await self._session.execute(_BEGIN_IN_TURN, values)
        gone: int = (await self._session.execute(_FOLD, values)).scalar_one()
        for table in ("measurements", "slow_link_measurements"):
            where = _OLD_MEASUREMENTS.format(table=table)
            gone += await self._rows(table, where, BATCH - gone, values)
        gone += await self._rows("rank_exits", _OLD_EXITS, BATCH - gone, values)
        return gone + await self._events(job_id, horizons, BATCH - gone)

    async def _events(self, job_id: str, horizons: Horizons, limit: int) -> int:
        """Delete a batch of old events, but keep the last change of phase and the events of `MARKS` after it.

        The present use of the job's slots follows from those events.
        """
        values: Mapping[str, Any] = {"job": job_id, "before": horizons.history, "capped": horizons.capped}
        cut = (await self._session.execute(_CUT, values)).scalar_one()
        if cut is None or limit <= 0:
            return 0
        kinds = {"job": job_id, "cut": cut, "kinds": list(PHASE_MARKS)}
        phase = (await self._session.execute(_LAST_PHASE, kinds)).scalar_one() or 0
        marks = ", ".join(f"'{kind}'" for kind in MARKS)
        where = f"job_id = :job AND sequence <= :cut AND (sequence < :phase OR kind NOT IN ({marks}))"
        return await self._rows("events", where, limit, {"job": job_id, "cut": cut, "phase": phase})

    async def _rows(self, table: str, where: str, limit: int, values: Mapping[str, Any]) -> int:
        return await _delete_batch(self._session, table, where, limit, **values) if limit > 0 else 0


_OLD_MEASUREMENTS = f"""
    job_id = :job AND updated_at < :before AND (generation, global_batch) IN (
        SELECT generation, global_batch FROM (
            SELECT generation, global_batch, row_number() OVER (
                PARTITION BY device_kind, slots, nodes, global_batch, local_batch, accumulation ORDER BY generation DESC
            ) AS age FROM {{table}} WHERE job_id = :job
        ) AS by_age WHERE age > {_KEPT_OF_A_PLAN}
    )
"""  # noqa: S608
_OLD_EXITS = """
    job_id = :job AND at < :before AND generation < least(
        (SELECT generation FROM jobs WHERE id = :job),
        (SELECT min(generation) FROM slot_grants WHERE job_id = :job AND released_at IS NULL)
    )
"""


async def _delete_batch(session: Session, table: str, where: str, limit: int = BATCH, **values: Any) -> int:
    """Delete at most `limit` rows of a table; return their number.

    It selects rows by their physical position (ctid), so the limit costs nothing.
    """
    statement = (
        f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {where} LIMIT :limit))"  # noqa: S608
    )
    return (await session.execute(text(statement), {"limit": limit, **values})).rowcount
