"""Views of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, text

from headway.contract.agents import NodeState
from headway.contract.health import QuarantineView
from headway.contract.views.nodes import NodeView, SlotView
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.nodes.quarantines import NodeQuarantines
from service.adapters.postgres.nodes.slot_history import SlotHistory
from service.adapters.postgres.tables.core import jobs, nodes, slot_grants
from service.adapters.postgres.tables.rental import ENDED_SQL, machines
from service.domain.cluster.snapshot import SlotKey
from service.domain.nodes.health import Quarantine
from service.domain.nodes.silence import SilenceRule
from service.usecases.ports.nodes import NodeQueries

_FOREIGN = ("", "another project")
"""Job id and name shown for a slot whose holder the reader may not see."""


class PostgresNodeQueries(SlotHistory, NodeQueries):
    """Views of nodes in PostgreSQL."""

    async def list_nodes(
        self, now: datetime, silence: SilenceRule, *, seen: frozenset[str] | None
    ) -> list[NodeView]:
        held = (
            select(slot_grants.c.node_id, slot_grants.c.slot, jobs.c.id, jobs.c.name, jobs.c.project)
            .join(jobs, jobs.c.id == slot_grants.c.job_id)
            .where(slot_grants.c.released_at.is_(None))
        )
        holders = {
            (row.node_id, row.slot): (row.id, row.name) if seen is None or row.project in seen else _FOREIGN
            for row in await self._session.rows(held)
        }
        confined = {one.key: one for one in await NodeQuarantines(self._session).open_quarantines()}
        over = (
            select(machines.c.id)
            .where(machines.c.id == nodes.c.machine_id, text(f"machines.{ENDED_SQL}"))
            .exists()
        )
        query = select(nodes).where(~((nodes.c.state == NodeState.LOST) & over)).order_by(nodes.c.name)
        rows = await self._session.rows(query)
        silence_s = silence.silence_of(sum(row.state != NodeState.LOST for row in rows))
        return [_node_view(row, holders, confined, now, silence_s) for row in rows]


def _message(said: str, slots: Sequence[SlotView]) -> str:
    """Return the message of a node. The reason why its agent takes no jobs precedes everything else."""
    why = next((slot.withheld for slot in slots if slot.withheld), "")
    return f"takes no jobs: {why}" if why else said


def _node_view(
    row: Any,
    holders: Mapping[tuple[str, int], tuple[str, str]],
    confined: Mapping[SlotKey, Quarantine],
    now: datetime,
    silence_s: float,
) -> NodeView:
    slots = []
    for slot in row.slots:
        job_id, job_name = holders.get((row.id, slot["index"]), (None, None))
        quarantine = confined.get(SlotKey(row.id, slot["index"]))
        view = None if quarantine is None else record_of(QuarantineView, values_of(quarantine))
        slots.append(record_of(SlotView, slot, job_id=job_id, job_name=job_name, quarantine=view))
    return record_of(
        NodeView,
        row,
        message=_message(row.message, slots),
        slots=slots,
        lease_remaining_s=silence_s - (now - row.seen_at).total_seconds(),
    )
