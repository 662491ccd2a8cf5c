"""Rows of slot grants and of allocations."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete

from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession, Session, Statement, columns_of
from service.adapters.postgres.tables.core import allocations, slot_grants
from service.domain.jobs.job import Allocation, size_of
from service.domain.jobs.membership import Members
from service.domain.jobs.records import AllocationRecord, Prediction
from service.usecases.ports.jobs import Grants

_GRANT = Statement(
    """
    INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at)
    SELECT node, slot, :job, :generation, :now
    FROM unnest(CAST(:nodes AS text[]), CAST(:slots AS int[])) AS wanted(node, slot)
    ORDER BY node, slot
    ON CONFLICT (node_id, slot) WHERE released_at IS NULL DO NOTHING
    RETURNING id
    """
)
"""Grant of slots in a fixed order, so that two transactions that want the same slots cannot deadlock."""

_HELD = Statement(
    """
    SELECT generation, node_id, slot FROM slot_grants WHERE job_id = :job AND released_at IS NULL
    ORDER BY generation, node_id, slot
    """
)
_ON_NODE = Statement(
    "SELECT DISTINCT job_id, generation FROM slot_grants WHERE node_id = :node AND released_at IS NULL"
)
_RELEASE = Statement(
    """
    UPDATE slot_grants SET released_at = :now
    WHERE job_id = :job AND generation = :generation AND released_at IS NULL
        AND (CAST(:node AS text) IS NULL OR node_id = :node) AND (CAST(:slots AS int[]) IS NULL OR slot = ANY(:slots))
    RETURNING node_id, slot
    """
)
_PASS_ON = Statement(
    """
    INSERT INTO slot_grants (node_id, slot, job_id, generation, granted_at)
    SELECT node, slot, :job, :generation, :now
    FROM unnest(CAST(:nodes AS text[]), CAST(:slots AS int[])) AS wanted(node, slot)
    ORDER BY node, slot
    """
)
_COLUMNS = columns_of(allocations)
_ADD = Statement(
    """
    INSERT INTO allocations (job_id, generation, slots, size, device_kind, first_node, master_port, members, stores, reason,
        message, round_id, granted_at, predicted_samples_per_s, predicted_low, predicted_high, crossed)
    VALUES (:job_id, :generation, :slots, :size, :device_kind, :first_node, :master_port, :members, :stores, :reason,
        :message, :round_id, :granted_at, :predicted_samples_per_s, :predicted_low, :predicted_high, :crossed)
    """
)
_SAVE_MEMBERS = Statement(
    "UPDATE allocations SET members = :members WHERE job_id = :job AND generation = :generation"
)
_LOAD = Statement(
    f"""
    SELECT {_COLUMNS} FROM allocations
    JOIN unnest(CAST(:jobs AS text[]), CAST(:generations AS int[])) AS wanted(job_id, generation)
        USING (job_id, generation)
    """  # noqa: S608 - constants
)
_OF_HELD = Statement(
    f"""
    SELECT {_COLUMNS} FROM allocations WHERE job_id = :job
        AND generation IN (SELECT generation FROM slot_grants WHERE job_id = :job AND released_at IS NULL)
    """  # noqa: S608
)
_NODE_STARTED = Statement(
    """
    UPDATE allocations SET started_nodes = started_nodes + 1 WHERE job_id = :job AND generation = :generation
    RETURNING started_nodes
    """
)
_END = Statement(
    """
    UPDATE allocations SET ended_at = coalesce(ended_at, CAST(:now AS timestamptz))
    WHERE job_id = :job AND generation = :generation
    """
)
_PORTS = Statement(
    """
    SELECT node_id, stores, first_node, master_port FROM slot_grants JOIN allocations USING (job_id, generation)
    WHERE node_id = ANY(:nodes) AND released_at IS NULL
    """
)


class PostgresGrants(OnSession, Grants):
    """Grants and allocations in PostgreSQL."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._read: dict[tuple[str, int], AllocationRecord] = {}
        """Records read so far. Only `save_members` changes a record."""

    async def grant(self, job_id: str, generation: int, slots: Allocation, now: datetime) -> bool:
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
        granted = [row.id for row in await self._session.fetch(_GRANT, **values)]
        if len(granted) == len(wanted):
            return True
        await self._session.execute(delete(slot_grants).where(one_of(slot_grants.c.id, granted)))
        return False

    async def held(self, job_id: str) -> dict[int, Allocation]:
        held: dict[int, dict[str, tuple[int, ...]]] = {}
        for generation, node, slot in await self._session.fetch(_HELD, job=job_id):
            of_generation = held.setdefault(generation, {})
            of_generation[node] = (*of_generation.get(node, ()), slot)
        return {generation: dict(nodes) for generation, nodes in held.items()}

    async def on_node(self, node_id: str) -> set[tuple[str, int]]:
        rows = await self._session.fetch(_ON_NODE, node=node_id)
        return {(row.job_id, row.generation) for row in rows}

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
        released = await self._session.fetch(
            _RELEASE,
            job=job_id,
            generation=generation,
            node=node_id,
            slots=None if slots is None else list(slots),
            now=now,
        )
        passed_on = [
            (row.node_id, row.slot) for row in released if row.slot in carry_over.get(row.node_id, ())
        ]
        if passed_on:
            await self._session.fetch(
                _PASS_ON,
                job=job_id,
                generation=next_generation or generation + 1,
                nodes=[node for node, _ in passed_on],
                slots=[slot for _, slot in passed_on],
                now=now,
            )
        return bool(released)

    async def add_allocation(self, allocation: AllocationRecord) -> None:
        await self._session.fetch(
            _ADD,
            **{
                **values_of(allocation),
                "slots": json.dumps(allocation.slots),
                "size": size_of(allocation.slots),
                "members": _as_json(allocation.members),
                "stores": json.dumps(dict(allocation.stores)),
                **_predicted(allocation.predicted),
            },
        )

    async def save_members(self, job_id: str, generation: int, members: Members) -> None:
        self._read.pop((job_id, generation), None)
        await self._session.fetch(_SAVE_MEMBERS, job=job_id, generation=generation, members=_as_json(members))

    async def allocation(self, job_id: str, generation: int) -> AllocationRecord | None:
        await self.load_allocations([(job_id, generation)])
        return self._read.get((job_id, generation))

    async def load_allocations(self, generations: Collection[tuple[str, int]]) -> None:
        unread = [one for one in generations if one not in self._read]
        if unread:
            wanted = {"jobs": [job for job, _ in unread], "generations": [number for _, number in unread]}
            rows = await self._session.fetch(_LOAD, **wanted)
            self._read |= {(row.job_id, row.generation): _record(row) for row in rows}

    async def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        records = [_record(row) for row in await self._session.fetch(_OF_HELD, job=job_id)]
        return {(node, one.generation): port for one in records for node, port in one.stores.items()}

    async def node_started(self, job_id: str, generation: int) -> int:
        (row,) = await self._session.fetch(_NODE_STARTED, job=job_id, generation=generation)
        return int(row.started_nodes)

    async def end_allocation(self, job_id: str, generation: int, now: datetime) -> None:
        await self._session.fetch(_END, job=job_id, generation=generation, now=now)

    async def ports_in_use(self, node_ids: Sequence[str]) -> dict[str, set[int]]:
        if not node_ids:
            return {}
        used: dict[str, set[int]] = {}
        for node, stores, first_node, master_port in await self._session.fetch(_PORTS, nodes=list(node_ids)):
            ports = {first_node: master_port} if stores is None else stores
            if node in ports:
                used.setdefault(node, set()).add(ports[node])
        return used


def _as_json(members: Members) -> str:
    return json.dumps([member.model_dump() for member in members])


def _predicted(prediction: Prediction | None) -> dict[str, float | None]:
    """Return the columns of a prediction, all null if a number in it is not finite and cannot be scored."""
    if prediction is None or not all(
        map(math.isfinite, (prediction.samples_per_s, prediction.low, prediction.high))
    ):
        return dict.fromkeys(("predicted_samples_per_s", "predicted_low", "predicted_high"))
    return {
        "predicted_samples_per_s": prediction.samples_per_s,
        "predicted_low": prediction.low,
        "predicted_high": prediction.high,
    }


def _record(row: Any) -> AllocationRecord:
    predicted = None
    if row.predicted_samples_per_s is not None:
        predicted = Prediction(row.predicted_samples_per_s, row.predicted_low, row.predicted_high)
    return record_of(AllocationRecord, row, predicted=predicted)
