"""Who holds which slot, and the history of allocations."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, delete, func, insert, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import Member
from headway.contract.jobs import Reason
from service.adapters.postgres.tables import allocations, slot_grants
from service.domain.jobs import Allocation, size_of
from service.domain.membership import first_members
from service.domain.ranks import layout
from service.usecases.records import AllocationRecord, Prediction

_HELD = slot_grants.c.released_at.is_(None)
_GRANT = text(
    """
    INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at)
    SELECT node, slot, :job, :generation, :now
    FROM unnest(CAST(:nodes AS text[]), CAST(:slots AS int[])) AS wanted(node, slot)
    ORDER BY node, slot
    ON CONFLICT (node_id, slot) WHERE released_at IS NULL DO NOTHING
    RETURNING id
    """
)
"""In one order, so that two who want the same slots do not wait for one another."""

_LOAD = text(
    """
    SELECT allocations.* FROM allocations
    JOIN unnest(CAST(:jobs AS text[]), CAST(:generations AS int[])) AS wanted(job_id, generation)
        USING (job_id, generation)
    """
)


class PostgresGrants:
    """Implements `usecases.ports.Grants`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def grant(self, job_id: str, generation: int, slots: Allocation, now: datetime) -> bool:
        """Hold free slots; all of them or none."""
        wanted = sorted((node, slot) for node, indices in slots.items() for slot in indices)
        if not wanted:
            return True
        values = {
            "nodes": [node for node, _ in wanted],
            "slots": [slot for _, slot in wanted],
            "job": job_id,
            "generation": generation,
            "now": now,
        }
        granted = list((await self._connection.execute(_GRANT, values)).scalars())
        if len(granted) == len(wanted):
            return True
        await self._connection.execute(delete(slot_grants).where(slot_grants.c.id.in_(granted)))
        return False

    async def held(self, job_id: str) -> dict[int, Allocation]:
        """What the job holds, by generation."""
        query = (
            select(slot_grants.c.generation, slot_grants.c.node_id, slot_grants.c.slot)
            .where(slot_grants.c.job_id == job_id, _HELD)
            .order_by(slot_grants.c.generation, slot_grants.c.node_id, slot_grants.c.slot)
        )
        held: dict[int, dict[str, tuple[int, ...]]] = {}
        for generation, node, slot in (await self._connection.execute(query)).all():
            of_generation = held.setdefault(generation, {})
            of_generation[node] = (*of_generation.get(node, ()), slot)
        return {generation: dict(nodes) for generation, nodes in held.items()}

    async def on_node(self, node_id: str) -> set[tuple[str, int]]:
        """(job id, generation) of everything that holds slots on the node."""
        query = (
            select(slot_grants.c.job_id, slot_grants.c.generation)
            .where(slot_grants.c.node_id == node_id, _HELD)
            .distinct()
        )
        return {(row.job_id, row.generation) for row in (await self._connection.execute(query)).all()}

    async def release(
        self,
        job_id: str,
        generation: int,
        node_id: str | None,
        carry_over: Allocation,
        now: datetime,
        *,
        slots: Collection[int] | None = None,
        next_generation: int | None = None,
    ) -> bool:
        """Free slots, if there are any; those in `carry_over` pass to the next generation at once."""
        freed = and_(slot_grants.c.job_id == job_id, slot_grants.c.generation == generation, _HELD)
        if node_id is not None:
            freed = and_(freed, slot_grants.c.node_id == node_id)
        if slots is not None:
            freed = and_(freed, slot_grants.c.slot.in_(slots))
        statement = (
            update(slot_grants)
            .where(freed)
            .values(released_at=now)
            .returning(slot_grants.c.node_id, slot_grants.c.slot)
        )
        released = (await self._connection.execute(statement)).all()
        passed_on = [
            {
                "node_id": node,
                "slot": slot,
                "job_id": job_id,
                "generation": next_generation or generation + 1,
                "granted_at": now,
            }
            for node, slot in released
            if slot in carry_over.get(node, ())
        ]
        if passed_on:
            await self._connection.execute(insert(slot_grants), passed_on)
        return bool(released)


class PostgresAllocations:
    """Implements `usecases.ports.Allocations`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._read: dict[tuple[str, int], AllocationRecord] = {}
        """What is in a record never changes."""

    async def add(self, allocation: AllocationRecord) -> None:
        """A generation starts."""
        await self._connection.execute(
            insert(allocations).values(
                job_id=allocation.job_id,
                generation=allocation.generation,
                slots={node: list(slots) for node, slots in allocation.slots.items()},
                size=size_of(allocation.slots),
                device_kind=allocation.device_kind,
                first_node=allocation.first_node,
                master_port=allocation.master_port,
                members=[member.model_dump() for member in allocation.members],
                stores=dict(allocation.stores),
                reason=allocation.reason,
                message=allocation.message,
                round_id=allocation.round_id,
                granted_at=allocation.granted_at,
                **_predicted(allocation.predicted),
            )
        )

    async def get(self, job_id: str, generation: int) -> AllocationRecord | None:
        """The allocation of one generation."""
        known = self._read.get((job_id, generation))
        if known is not None:
            return known
        query = select(allocations).where(_key(job_id, generation))
        row = (await self._connection.execute(query)).first()
        if row is None:
            return None
        return self._read.setdefault((job_id, generation), _record(row))

    async def load(self, generations: Collection[tuple[str, int]]) -> None:
        """Read these at once."""
        unread = [one for one in generations if one not in self._read]
        if unread:
            wanted = {"jobs": [job for job, _ in unread], "generations": [number for _, number in unread]}
            rows = (await self._connection.execute(_LOAD, wanted)).all()
            self._read |= {(row.job_id, row.generation): _record(row) for row in rows}

    async def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        """Ports of the stores that nodes keep for a job, by node id and the generation of the start."""
        held = select(slot_grants.c.generation).where(slot_grants.c.job_id == job_id, _HELD).scalar_subquery()
        query = select(allocations).where(allocations.c.job_id == job_id, allocations.c.generation.in_(held))
        records = [_record(row) for row in (await self._connection.execute(query)).all()]
        return {(node, one.generation): port for one in records for node, port in one.stores.items()}

    async def node_started(self, job_id: str, generation: int) -> int:
        """One more node has started its ranks."""
        statement = (
            update(allocations)
            .where(_key(job_id, generation))
            .values(started_nodes=allocations.c.started_nodes + 1)
            .returning(allocations.c.started_nodes)
        )
        return int((await self._connection.execute(statement)).scalar_one())

    async def end(self, job_id: str, generation: int, now: datetime) -> None:
        """The generation trains no longer."""
        await self._connection.execute(
            update(allocations)
            .where(_key(job_id, generation))
            .values(ended_at=func.coalesce(allocations.c.ended_at, now))
        )

    async def ports_in_use(self, node_ids: Sequence[str]) -> dict[str, set[int]]:
        """Ports on which stores are kept, by node: as long as any process of their start is there."""
        if not node_ids:
            return {}
        query = (
            select(
                slot_grants.c.node_id,
                allocations.c.stores,
                allocations.c.first_node,
                allocations.c.master_port,
            )
            .join(
                slot_grants,
                and_(
                    slot_grants.c.job_id == allocations.c.job_id,
                    slot_grants.c.generation == allocations.c.generation,
                ),
            )
            .where(slot_grants.c.node_id.in_(node_ids), _HELD)
        )
        used: dict[str, set[int]] = {}
        for node, stores, first_node, master_port in (await self._connection.execute(query)).all():
            ports = {first_node: master_port} if stores is None else stores
            if node in ports:
                used.setdefault(node, set()).add(ports[node])
        return used


def _predicted(prediction: Prediction | None) -> dict[str, float]:
    """The columns of a prediction; none where it is no number that can be scored."""
    if prediction is None or not all(
        map(math.isfinite, (prediction.samples_per_s, prediction.low, prediction.high))
    ):
        return {}
    return {
        "predicted_samples_per_s": prediction.samples_per_s,
        "predicted_low": prediction.low,
        "predicted_high": prediction.high,
    }


def _record(row: Row[Any]) -> AllocationRecord:
    slots = {node: tuple(indices) for node, indices in row.slots.items()}
    if row.members is None:  # from before members could change in place
        members = first_members(layout(slots, previous_first=row.first_node), row.generation)
        stores = {row.first_node: row.master_port}
    else:
        members = tuple(Member.model_validate(one) for one in row.members)
        stores = row.stores
    return AllocationRecord(
        job_id=row.job_id,
        generation=row.generation,
        slots=slots,
        device_kind=row.device_kind,
        first_node=row.first_node,
        master_port=row.master_port,
        reason=Reason(row.reason),
        message=row.message,
        round_id=row.round_id,
        granted_at=row.granted_at,
        members=members,
        stores=stores,
        predicted=None
        if row.predicted_samples_per_s is None
        else Prediction(row.predicted_samples_per_s, row.predicted_low, row.predicted_high),
    )


def _key(job_id: str, generation: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a SQL expression
    return tuple_(allocations.c.job_id, allocations.c.generation) == tuple_(job_id, generation)
