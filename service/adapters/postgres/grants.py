"""Who holds which slot, and the history of allocations."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.agents import Member
from headway.contract.jobs import Reason
from service.adapters.postgres.direct import Statement, columns_of, fetch
from service.adapters.postgres.expressions import one_of
from service.adapters.postgres.tables import allocations, slot_grants
from service.domain.jobs import Allocation, size_of
from service.domain.membership import first_members
from service.domain.ranks import layout
from service.usecases.records import AllocationRecord, Prediction

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
"""In one order, so that two who want the same slots do not wait for one another."""

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
        message, round_id, granted_at, predicted_samples_per_s, predicted_low, predicted_high)
    VALUES (:job_id, :generation, :slots, :size, :device_kind, :first_node, :master_port, :members, :stores, :reason,
        :message, :round_id, :granted_at, :predicted_samples_per_s, :predicted_low, :predicted_high)
    """
)
_LOAD = Statement(
    f"""
    SELECT {_COLUMNS} FROM allocations
    JOIN unnest(CAST(:jobs AS text[]), CAST(:generations AS int[])) AS wanted(job_id, generation)
        USING (job_id, generation)
    """  # noqa: S608 - names of our own
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
        granted = [row.id for row in await fetch(self._connection, _GRANT, **values)]
        if len(granted) == len(wanted):
            return True
        await self._connection.execute(delete(slot_grants).where(one_of(slot_grants.c.id, granted)))
        return False

    async def held(self, job_id: str) -> dict[int, Allocation]:
        """What the job holds, by generation."""
        held: dict[int, dict[str, tuple[int, ...]]] = {}
        for generation, node, slot in await fetch(self._connection, _HELD, job=job_id):
            of_generation = held.setdefault(generation, {})
            of_generation[node] = (*of_generation.get(node, ()), slot)
        return {generation: dict(nodes) for generation, nodes in held.items()}

    async def on_node(self, node_id: str) -> set[tuple[str, int]]:
        """(job id, generation) of everything that holds slots on the node."""
        rows = await fetch(self._connection, _ON_NODE, node=node_id)
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
        """Free slots, if there are any; those in `carry_over` pass to the next generation at once."""
        released = await fetch(
            self._connection,
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
            await fetch(
                self._connection,
                _PASS_ON,
                job=job_id,
                generation=next_generation or generation + 1,
                nodes=[node for node, _ in passed_on],
                slots=[slot for _, slot in passed_on],
                now=now,
            )
        return bool(released)


class PostgresAllocations:
    """Implements `usecases.ports.Allocations`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._read: dict[tuple[str, int], AllocationRecord] = {}
        """What is in a record never changes."""

    async def add(self, allocation: AllocationRecord) -> None:
        """A generation starts."""
        await fetch(
            self._connection,
            _ADD,
            job_id=allocation.job_id,
            generation=allocation.generation,
            slots=json.dumps(allocation.slots),
            size=size_of(allocation.slots),
            device_kind=allocation.device_kind,
            first_node=allocation.first_node,
            master_port=allocation.master_port,
            members=json.dumps([member.model_dump() for member in allocation.members]),
            stores=json.dumps(dict(allocation.stores)),
            reason=allocation.reason,
            message=allocation.message,
            round_id=allocation.round_id,
            granted_at=allocation.granted_at,
            **_predicted(allocation.predicted),
        )

    async def get(self, job_id: str, generation: int) -> AllocationRecord | None:
        """The allocation of one generation."""
        await self.load([(job_id, generation)])
        return self._read.get((job_id, generation))

    async def load(self, generations: Collection[tuple[str, int]]) -> None:
        """Read these at once."""
        unread = [one for one in generations if one not in self._read]
        if unread:
            wanted = {"jobs": [job for job, _ in unread], "generations": [number for _, number in unread]}
            rows = await fetch(self._connection, _LOAD, **wanted)
            self._read |= {(row.job_id, row.generation): _record(row) for row in rows}

    async def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        """Ports of the stores that nodes keep for a job, by node id and the generation of the start."""
        records = [_record(row) for row in await fetch(self._connection, _OF_HELD, job=job_id)]
        return {(node, one.generation): port for one in records for node, port in one.stores.items()}

    async def node_started(self, job_id: str, generation: int) -> int:
        """One more node has started its ranks."""
        (row,) = await fetch(self._connection, _NODE_STARTED, job=job_id, generation=generation)
        return int(row.started_nodes)

    async def end(self, job_id: str, generation: int, now: datetime) -> None:
        """The generation trains no longer."""
        await fetch(self._connection, _END, job=job_id, generation=generation, now=now)

    async def ports_in_use(self, node_ids: Sequence[str]) -> dict[str, set[int]]:
        """Ports on which stores are kept, by node: as long as any process of their start is there."""
        if not node_ids:
            return {}
        used: dict[str, set[int]] = {}
        for node, stores, first_node, master_port in await fetch(
            self._connection, _PORTS, nodes=list(node_ids)
        ):
            ports = {first_node: master_port} if stores is None else stores
            if node in ports:
                used.setdefault(node, set()).add(ports[node])
        return used


def _predicted(prediction: Prediction | None) -> dict[str, float | None]:
    """The columns of a prediction; null where it is no number that can be scored."""
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
