"""Random clusters of one device kind, and choices that keep to its rows."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from service.domain.allocation.configurations.shapes import Shapes, exempt_jobs, packing_rows, shapes_of
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.placement.placement import PlacementRequest, PoolSlots
from service.domain.jobs.job import Allocation, size_of
from service.domain.shared.arrays import BoolArray, IntArray

KIND = "gpu"


@dataclass(frozen=True)
class Cluster:
    """Nodes by number: how large they are, what is free, what each job holds. Job `i` is called `j{i}`."""

    node_slots: IntArray
    free: Allocation
    held: list[Allocation]
    shapes: Shapes
    rows: tuple[Row, ...]
    exempt: BoolArray

    @property
    def pool(self) -> PoolSlots:
        return PoolSlots(free=self.free, node_slots=self.shapes.node_slots)

    @property
    def room(self) -> IntArray:
        return room_of(len(self.node_slots), [self.free, *self.held])

    @property
    def current(self) -> IntArray:
        return columns_of(self.shapes, [size_of(held) for held in self.held])

    def wants(self, chosen: IntArray) -> list[PlacementRequest]:
        return [
            PlacementRequest(
                job_id=f"j{job}",
                kind=KIND,
                slots=0 if column == NOTHING else int(self.shapes.slots[column]),
                unit=1 if column == NOTHING or self.exempt[job] else int(self.shapes.unit[column]),
                held_kind=KIND if self.held[job] else "",
                held=self.held[job],
            )
            for job, column in enumerate(chosen)
        ]

    def keeps_to_rows(self, chosen: IntArray) -> bool:
        rows = (*self.rows, Row(name="all", capacity=float(self.room.sum()), demand=self.shapes.slots * 1.0))
        return all(
            sum(
                row.demand[column]
                for job, column in enumerate(chosen)
                if column != NOTHING and (row.jobs is None or row.jobs[job])
            )
            <= row.capacity
            for row in rows
        )


def room_of(nodes: int, parts: list[Allocation]) -> IntArray:
    room = np.zeros(nodes, dtype=np.int64)
    for part in parts:
        for node, slots in part.items():
            room[int(node)] += len(slots)
    return room


def columns_of(shapes: Shapes, sizes: list[int]) -> IntArray:
    where = {int(slots): column for column, slots in enumerate(shapes.slots)}
    return np.array([where.get(size, NOTHING) for size in sizes], dtype=np.int64)


def cluster_of(node_slots: list[int], free: Allocation, held: list[Allocation]) -> Cluster:
    """The shapes and rows of a cluster; slots that are neither free nor held belong to jobs that cannot be moved."""
    room = room_of(len(node_slots), [free, *held])
    sizes = np.arange(1, room.sum() + 1)
    shapes = shapes_of(sizes, node_slots=np.array(node_slots, dtype=np.int64), room=room)
    current = columns_of(shapes, [size_of(one) for one in held])
    entries = [(job, len(slots)) for job, one in enumerate(held) for slots in one.values()]
    exempt = exempt_jobs(
        shapes,
        room=room,
        current=current,
        holder=np.array([job for job, _ in entries], dtype=np.int64),
        held=np.array([slots for _, slots in entries], dtype=np.int64),
    )
    rows = packing_rows(shapes, kind=KIND, room=room, exempt=exempt)
    return Cluster(np.array(node_slots, dtype=np.int64), free, held, shapes, rows, exempt)


def random_cluster(
    rng: random.Random, *, nodes: int, largest: int, jobs: int, tidy: bool = False, alike: bool = False
) -> Cluster:
    """Nodes of up to `largest` slots, some of them taken for good, and jobs that hold some of the others: anywhere, or
    each on one node if `tidy`.
    """
    node_slots = [largest if alike else rng.randint(1, largest) for _ in range(nodes)]
    slots = [(node, slot) for node, count in enumerate(node_slots) for slot in range(count)]
    if not tidy:
        rng.shuffle(slots)
        slots = slots[: rng.randint(len(slots) // 2, len(slots))]
    held: list[dict[str, tuple[int, ...]]] = [{} for _ in range(jobs)]
    free: dict[str, tuple[int, ...]] = {}
    while slots:
        owner = held[rng.randrange(jobs)] if rng.random() < 0.8 else free
        if owner is not free and owner and (tidy or rng.random() < 0.3):
            owner = free
        node, slot = slots[0]
        count = 1 if owner is free else rng.choice([1, 1, 2, 2, 4, 4, 8, 3])
        mine = (
            [one for one in slots if one[0] == node][:count] if tidy or rng.random() < 0.6 else slots[:count]
        )
        slots = [one for one in slots if one not in mine]
        for node, slot in mine:
            owner[str(node)] = (*owner.get(str(node), ()), slot)
    return cluster_of(node_slots, free, list(held))


def random_choice(rng: random.Random, cluster: Cluster, *, change: float) -> IntArray:
    """A choice that keeps to the rows: some jobs get another size, as long as the rows let them."""
    chosen = cluster.current
    jobs = list(range(len(chosen)))
    rng.shuffle(jobs)
    for job in jobs:
        if rng.random() < change and len(cluster.shapes.slots):
            before = chosen[job]
            chosen[job] = rng.choice([NOTHING, *range(min(16, len(cluster.shapes.slots)))])
            if not cluster.keeps_to_rows(chosen):
                chosen[job] = before
    return chosen
