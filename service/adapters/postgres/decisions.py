"""The snapshot that a round decides on, and what it decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, or_, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import NodeState
from headway.contract.jobs import Reason, SizeOption
from service.adapters.postgres.jobs import row_to_job
from service.adapters.postgres.tables import (
    TERMINAL_SQL,
    decisions,
    jobs,
    measurements,
    nodes,
    rounds,
    slot_grants,
)
from service.domain.cluster import Measurement, Node, SlotKey, Snapshot

_ENOUGH_STEPS = 10
"""Fewer steps than this say little of a size's speed: the first ones are slow."""


class PostgresDecisions:
    """Implements `usecases.ports.Decisions`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def snapshot(self, now: datetime) -> Snapshot:
        """One consistent picture of every job that is not terminal, every node and every held slot."""
        await self._connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        live = select(jobs).where(text(f"NOT ({TERMINAL_SQL})"))
        job_rows = (await self._connection.execute(live)).all()
        node_rows = (await self._connection.execute(select(nodes))).all()
        grants = await self._connection.execute(
            select(slot_grants.c.node_id, slot_grants.c.slot, slot_grants.c.job_id).where(
                slot_grants.c.released_at.is_(None)
            )
        )
        return Snapshot(
            now=now,
            jobs={row.id: row_to_job(row) for row in job_rows},
            nodes={
                row.id: Node(
                    id=row.id,
                    name=row.name,
                    state=NodeState(row.state),
                    slots={slot["index"]: slot["device_kind"] for slot in row.slots},
                )
                for row in node_rows
            },
            held={SlotKey(row.node_id, row.slot): row.job_id for row in grants.all()},
            measurements=await self._measurements([row.id for row in job_rows]),
        )

    async def _measurements(self, job_ids: Sequence[str]) -> dict[str, tuple[Measurement, ...]]:
        query = select(measurements).where(
            measurements.c.job_id.in_(job_ids), measurements.c.steps >= _ENOUGH_STEPS
        )
        found: dict[str, tuple[Measurement, ...]] = {}
        for row in (await self._connection.execute(query)).all():
            samples_per_s = row.global_batch * row.steps / row.step_s_sum
            one = Measurement(
                row.device_kind,
                row.slots,
                samples_per_s,
                row.steps,
                nodes=row.nodes,
                generation=row.generation,
                global_batch=row.global_batch,
                gradient_sqr=row.gradient_sqr,
                gradient_var=row.gradient_var,
            )
            found[row.job_id] = (*found.get(row.job_id, ()), one)
        return found

    async def store(
        self,
        job_id: str,
        *,
        round_id: str,
        now: datetime,
        action: str,
        reason: Reason,
        message: str,
        options: Sequence[SizeOption],
    ) -> None:
        """The last decision about a job; written only when it says something new."""
        values = {
            "round_id": round_id,
            "decided_at": now,
            "action": action,
            "reason": reason,
            "message": message,
            "options": [option.model_dump(mode="json") for option in options],
        }
        statement = upsert(decisions).values(job_id=job_id, **values)
        await self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=["job_id"],
                set_=values,
                where=or_(
                    decisions.c.action != statement.excluded.action,
                    decisions.c.message != statement.excluded.message,
                    decisions.c.options != statement.excluded.options,
                ),
            )
        )

    async def store_round(
        self,
        round_id: str,
        *,
        now: datetime,
        took_s: float,
        status: str,
        objective: float,
        bound: float,
        jobs: int,
        changes: Sequence[Mapping[str, Any]],
    ) -> None:
        """A round that changed something."""
        await self._connection.execute(
            insert(rounds).values(
                id=round_id,
                at=now,
                took_s=took_s,
                status=status,
                objective=objective,
                bound=bound,
                jobs=jobs,
                changes=[dict(change) for change in changes],
            )
        )
