"""The configurations of a round: what each device kind of the cluster can give, and the rows that bound it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.contract.agents import NodeState
from service.domain.allocation.eligibility import Holding
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.shapes import Shapes, exempt_jobs, packing_rows, regular_sizes, shapes_of
from service.domain.arrays import BoolArray, IntArray
from service.domain.cluster import Snapshot
from service.domain.jobs import Job
from service.domain.policies.policy import Configurations

_TOO_MANY_SIZES = 256
"""Of a list of sizes on a large cluster, only those count that shapes would offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRoom:
    """The nodes of one kind (N,): their names in order, all their slots of it, and those that a round may give out."""

    nodes: tuple[str, ...]
    slots: IntArray
    room: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """`configurations` are columns of shapes, kind after kind, and behind them, for jobs that hold slots nobody else can
    have, the same sizes at a lower demand.

    Attributes:
        shapes: by kind; those of kind k are the columns from `first[k]` on.
        demand: (C,) slots that each column takes from what everybody shares.
        private: (C,) how many private slots its job must hold on this kind; 0 for the columns of everybody.
    """

    configurations: Configurations
    shapes: tuple[Shapes, ...]
    first: IntArray
    demand: IntArray
    private: IntArray

    def unit_of(self, column: int) -> int:
        """The largest piece of a column that is sure to lie on one node; 1 where that is not promised."""
        if column >= sum(len(one.slots) for one in self.shapes):
            return 1
        kind = int(self.configurations.kind[column])
        return int(self.shapes[kind].unit[column - self.first[kind]])

    def find(self, kind: str | None, slots: int, private: int = 0) -> int:
        """The column of a kind and size; -1 when there is none."""
        names = self.configurations.kinds
        if kind not in names:
            return -1
        found = (
            (self.configurations.kind == names.index(kind))
            & (self.configurations.slots == slots)
            & (self.private == private)
        )
        return int(found.argmax()) if found.any() else -1


def rooms_of(snapshot: Snapshot, holdings: Mapping[str, Holding]) -> dict[str, KindRoom]:
    """What each kind in service has, by kind in order. `holdings` are those of the jobs that a round decides about."""
    slots: dict[str, dict[str, int]] = {}
    room: dict[str, dict[str, int]] = {}
    for node in sorted(snapshot.nodes.values(), key=lambda node: node.id):
        for kind in node.slots.values():
            of_kind = slots.setdefault(kind, {})
            if node.state is NodeState.READY:
                of_kind[node.id] = of_kind.get(node.id, 0) + 1
    movable = (key for holding in holdings.values() for key in holding.keepable)
    for key in (*snapshot.free_slots(), *movable):
        if snapshot.nodes[key.node_id].state is NodeState.READY:
            of_kind = room.setdefault(snapshot.kind_of(key), {})
            of_kind[key.node_id] = of_kind.get(key.node_id, 0) + 1
    return {
        kind: KindRoom(
            nodes=tuple(slots[kind]),
            slots=np.array([*slots[kind].values()], dtype=np.int64),
            room=np.array([room.get(kind, {}).get(node, 0) for node in slots[kind]], dtype=np.int64),
        )
        for kind in sorted(slots)
    }


def columns_of(
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    rooms: Mapping[str, KindRoom],
    usd_per_slot_h: Mapping[str, float],
) -> Columns:
    """A column for every size of a kind that some job may have there."""
    wanted = {size for job in jobs for size in _sizes(job)}
    shapes = [
        shapes_of(_wanted_on(kind, wanted, jobs, holdings, room), node_slots=room.slots, room=room.room)
        for kind, room in rooms.items()
    ]
    counts = [len(one.slots) for one in shapes]
    kind = np.repeat(np.arange(len(shapes)), counts)
    slots, nodes = _joined([one.slots for one in shapes]), _joined([one.nodes for one in shapes])
    private = np.zeros(len(slots), dtype=np.int64)
    for index, name in enumerate(rooms):
        for amount in sorted({one.private for one in holdings.values() if one.kind == name} - {0}):
            own = np.flatnonzero((kind == index) & (private == 0))
            kind, slots, nodes = (_joined([one, one[own]]) for one in (kind, slots, nodes))
            private = _joined([private, np.full(len(own), amount)])
    prices = np.array([max(0.0, usd_per_slot_h.get(name, 0.0)) for name in rooms])
    configurations = Configurations(
        kinds=tuple(rooms),
        kind=kind,
        slots=slots,
        nodes=nodes,
        usd_per_h=slots * prices[kind] if len(slots) else np.zeros(0),
    )
    return Columns(
        configurations=configurations,
        shapes=tuple(shapes),
        first=np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64),
        demand=np.maximum(slots - private, 0),
        private=private,
    )


def rows_of(
    columns: Columns,
    rooms: Mapping[str, KindRoom],
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    current: IntArray,
) -> tuple[tuple[Row, ...], BoolArray]:
    """Slots of each kind first, then what makes every choice placeable; and the jobs (J,) that the latter spares."""
    kind = columns.configurations.kind
    rows = [
        Row(
            name=f"slots/{name}",
            capacity=float(room.room.sum()),
            demand=columns.demand * (kind == index) * 1.0,
        )
        for index, (name, room) in enumerate(rooms.items())
    ]
    spared = np.zeros(len(jobs), dtype=np.bool_)
    for index, (name, room) in enumerate(rooms.items()):
        first, shapes = int(columns.first[index]), columns.shapes[index]
        inside = (current >= first) & (current < first + len(shapes.slots))
        holder, held = _held(jobs, holdings, name)
        exempt = exempt_jobs(
            shapes, room=room.room, current=np.where(inside, current - first, -1), holder=holder, held=held
        )
        rows += packing_rows(shapes, kind=name, room=room.room, exempt=exempt, first=first, columns=len(kind))
        spared |= exempt
    return tuple(rows), spared


def _held(jobs: Sequence[Job], holdings: Mapping[str, Holding], kind: str) -> tuple[IntArray, IntArray]:
    """Which job (its place in `jobs`) holds how many slots of the kind: an entry for each job and node."""
    holder: list[int] = []
    held: list[int] = []
    for index, job in enumerate(jobs):
        holding = holdings[job.id]
        if holding.kind == kind:
            on: dict[str, int] = {}
            for key in holding.keepable:
                on[key.node_id] = on.get(key.node_id, 0) + 1
            holder += [index] * len(on)
            held += on.values()
    return np.array(holder, dtype=np.int64), np.array(held, dtype=np.int64)


def _sizes(job: Job) -> tuple[int, ...]:
    pinned = () if job.pinned_size is None else (job.pinned_size,)
    return (*job.spec.elastic.allowed_sizes(), *pinned)


def _wanted_on(
    kind: str, wanted: set[int], jobs: Sequence[Job], holdings: Mapping[str, Holding], room: KindRoom
) -> IntArray:
    """The sizes that get a column on a kind: of very many, only regular ones, and what must have one."""
    most = int(room.slots.sum())
    here = {size for size in wanted if size <= most}
    if len(here) > _TOO_MANY_SIZES:
        smallest = {min(_sizes(job)) for job in jobs} | {job.pinned_size or 0 for job in jobs}
        here &= smallest | set(regular_sizes(room.slots).tolist())
    here |= {holding.size for holding in holdings.values() if holding.kind == kind}
    return np.array(sorted(here), dtype=np.int64)


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, dtype=np.int64)
