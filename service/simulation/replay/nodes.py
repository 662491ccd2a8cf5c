"""Nodes of a world over time: their presence, the placement of jobs, and the resulting constraints."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from headway.contract.values.checkpoint_interval import checkpoint_interval_s
from service.domain.allocation.configurations.shapes import pieces_of
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.limits.risk import CHECKPOINT_S
from service.domain.cluster.spot_rate import checkpoint_losses_per_h
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.clusters import parts_by_kind, rows_of, shapes_of_kinds
from service.simulation.model.world import World
from service.simulation.replay.failures import NodeEvent, failures_of, spot_events


class ReplayNodes:
    """All nodes (N,) of a world, kind after kind. Jobs are placed on them only if nodes may leave."""

    def __init__(self, world: World, *, rented: bool = False) -> None:
        """Create the nodes; `rented`: none is present until it joins."""
        self._world = world
        self.shapes = shapes_of_kinds(world.kinds)
        self._parts = parts_by_kind(world.configurations)
        self.kind = np.repeat(np.arange(len(world.kinds)), [len(one.node_slots) for one in world.kinds])
        self.size = np.array([slots for one in world.kinds for slots in one.node_slots], dtype=np.int64)
        self._away = np.full(len(self.size), int(rented), dtype=np.int64)
        """Number of reasons why a node is absent."""
        rules = world.rules
        spot = [one for one in world.kinds if one.spot is not None and one.spot_nodes]
        self._may_leave = rented or bool(spot) or rules.failures_per_node_h > 0
        self._free = self.size.copy()
        self._slots_by_node: dict[int, dict[int, int]] = {}
        """Slots by node, for each placed job."""
        self._random = np.random.default_rng([world.seed, 1])
        self._events: list[NodeEvent] = []
        for event in (*failures_of(rules, len(self.size), self._random), *spot_events(world.kinds)):
            heapq.heappush(self._events, event)
        self.rows: tuple[Row, ...] = self._bounds()
        self.slots = int(self.size[self._away == 0].sum())

    @property
    def next_s(self) -> float:
        """Time of the next departure or return of a node."""
        return self._events[0].at_s if self._events else math.inf

    @property
    def present(self) -> BoolArray:
        """Mask (N,) of the present nodes."""
        return np.asarray(self._away == 0)

    @property
    def stranded(self) -> IntArray:
        """Jobs (n,) that still hold slots of an absent node."""
        gone = set(np.flatnonzero(self._away).tolist())
        jobs = [job for job, slots_by_node in self._slots_by_node.items() if gone & slots_by_node.keys()]
        return np.array(sorted(jobs), dtype=np.int64)

    @property
    def jobs_by_node(self) -> dict[int, set[int]]:
        """Jobs that hold slots, by node."""
        jobs: dict[int, set[int]] = {}
        for job, slots_by_node in self._slots_by_node.items():
            for node in slots_by_node:
                jobs.setdefault(node, set()).add(job)
        return jobs

    def join(self, nodes: Sequence[int], *, leave: Sequence[int] = ()) -> None:
        """Let rented nodes join and leave. Jobs on a node that leaves must be placed again."""
        for node in nodes:
            self._away[node] -= 1
        for node in leave:
            self._away[node] += 1
        self.rows = self._bounds()
        self.slots = int(self.size[self._away == 0].sum())

    @property
    def by_kind(self) -> IntArray:
        """Number of present nodes of each kind (K,)."""
        return np.bincount(self.kind[self._away == 0], minlength=len(self._world.kinds))

    def advance(self, now_s: float) -> list[tuple[IntArray, FloatArray]]:
        """Let nodes come and go until now.

        Return the jobs (n,) that lost a node, with the seconds (n,) between their checkpoints. These jobs hold
        nothing any more.
        """
        lost: list[tuple[IntArray, FloatArray]] = []
        while self._events and self._events[0].at_s <= now_s:
            event = heapq.heappop(self._events)
            was_there = self._away[event.node] == 0
            self._away[event.node] += 1 if event.leaves else -1
            if event.leaves and was_there:
                jobs = [
                    job for job, slots_by_node in self._slots_by_node.items() if event.node in slots_by_node
                ]
                rows = np.array(sorted(jobs), dtype=np.int64)
                every_s = [self._checkpoint_s(job) if event.failed else 0.0 for job in rows.tolist()]
                self.place(rows, np.full(len(rows), NOTHING))
                lost.append((rows, np.array(every_s, dtype=np.float64)))
            for following in event.then(self._random, self._world.rules):
                heapq.heappush(self._events, following)
        self.rows = self._bounds()
        self.slots = int(self.size[self._away == 0].sum())
        return [(rows, checkpoint_s) for rows, checkpoint_s in lost if len(rows)]

    def _checkpoint_s(self, job: int) -> float:
        """Return the seconds between the checkpoints of a job, from the failures of its nodes."""
        rules = self._world.rules
        if rules.checkpoint_s is not None:
            return rules.checkpoint_s
        failures = [rules.failures_per_node_h] * len(self._slots_by_node[job])
        losses_per_h = checkpoint_losses_per_h(failures, in_place=False)
        return checkpoint_interval_s(losses_per_h=losses_per_h, cost_s=CHECKPOINT_S)

    def place(self, rows: IntArray, columns: IntArray) -> None:
        """Move `rows` (n,) from their nodes to these columns (n,).

        The largest blocks are placed first, each on the node that it fills best. A block is divided if no
        node has room for it.
        """
        if not self._may_leave:
            return
        for job in rows.tolist():
            for node, slots in self._slots_by_node.pop(job, {}).items():
                self._free[node] += slots
        pieces = [
            (piece, job, kind)
            for job, column in zip(rows.tolist(), columns.tolist(), strict=True)
            if column != NOTHING
            for kind in np.flatnonzero(self._parts[column]).tolist()
            for piece in self._pieces(column, kind)
        ]
        for piece, job, kind in sorted(pieces, key=lambda one: (-one[0], one[1])):
            self._place_block(job, piece, self.kind == kind)

    def _place_block(self, job: int, piece: int, of_kind: BoolArray) -> None:
        present = of_kind & (self._away == 0)
        slots_by_node = self._slots_by_node.setdefault(job, {})
        while piece > 0:
            free = np.where(present, self._free, 0)
            fits = free >= piece
            node = int(np.where(fits, free, np.iinfo(np.int64).max).argmin() if fits.any() else free.argmax())
            taken = min(piece, int(free[node]))
            if taken == 0:
                raise AssertionError("a choice within the rows fits on the nodes")
            self._free[node] -= taken
            slots_by_node[node] = slots_by_node.get(node, 0) + taken
            piece -= taken

    def _pieces(self, column: int, kind: int) -> list[int]:
        shapes, slots = self.shapes[kind], int(self._parts[column, kind])
        unit = int(shapes.unit[np.searchsorted(shapes.slots, slots)])
        counts = pieces_of(slots, shapes.node_slots, unit)
        return [1 << level for level, count in enumerate(counts) for _ in range(count)]

    def _bounds(self) -> tuple[Row, ...]:
        room = np.where(self._away == 0, self.size, 0)
        rooms = [room[self.kind == index] for index in range(len(self._world.kinds))]
        return rows_of(self._world.configurations, self.shapes, rooms)
