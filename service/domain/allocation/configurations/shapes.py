"""Shapes: the sizes that a device kind offers, chosen so that any selection of them can be placed.

A node grants its slots in *pieces* of powers of two. A job of `s` slots on nodes of `R` takes `s // R` whole
nodes and the rest. Each whole node, and the rest, is cut into powers of two, the largest first (7 = 4 + 2 +
1), and each piece lies on one node. With `c_n` the slots of node `n` that can be granted, pieces fit if and
only if for every power

    sum of the pieces of at least 2^k  <=  sum over n of floor(c_n / 2^k) * 2^k.

Proof: placed largest first, every piece finds the space left by larger ones in multiples of its own size. It
therefore fits wherever such a multiple is free, whichever nodes were taken before. These inequalities are
linear in the choice, and become rows of the allocation problem. If all nodes have the same number of slots, a
power of two, capacity alone implies them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.shared.arrays import BoolArray, IntArray, NumberArray

COVERAGE = 0.75
"""Minimum fraction of a kind's slots in whole nodes of the size from which its shapes are built."""
FINE_NODES = 16
"""Number of nodes up to which every number of whole nodes is offered; beyond it eight in every doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The columns of one device kind (C,), by `slots` ascending.

    Attributes:
        node_slots: `R`, the slots of a whole node.
        slots: number of slots of each column.
        nodes: number of nodes that it spans: the fewest possible, or more if no node has space for a whole
            piece. A size of several pieces on a node (3 = 2 + 1) may span more if nodes are crowded.
        unit: its largest piece that is sure to lie on one node, a power of two.
        regular: True for powers of two within a node and for whole nodes, which leave no odd remainders.
    """

    node_slots: int
    slots: IntArray
    nodes: IntArray
    unit: IntArray
    regular: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGroup:
    """Columns that differ only in size, ascending: those of a pool, or of one anchor. `regular` is as in
    `Shapes`.
    """

    columns: IntArray
    slots: IntArray
    regular: BoolArray


def standard_node(node_slots: IntArray) -> int:
    """Return the largest node size that covers at least `COVERAGE` of the slots of nodes (N,) of these sizes;
    1 without any.
    """
    sizes = np.unique(node_slots[node_slots > 0])
    enough = COVERAGE * node_slots[node_slots > 0].sum()
    fitting = [size for size in sizes.tolist() if (node_slots // size * size).sum() >= enough]
    return int(max(fitting, default=1))


def regular_sizes(node_slots: IntArray) -> IntArray:
    """Return the sizes worth a column for a job that accepts any size.

    On one node these are all sizes, otherwise powers of two and whole nodes.
    """
    slots = node_slots[node_slots > 0]
    whole = standard_node(slots)
    if len(slots) < 2:
        return np.arange(1, slots.sum() + 1, dtype=np.int64)
    most = int((slots // whole).sum())
    counts = np.arange(1, min(most, FINE_NODES) + 1)
    coarse = [np.arange(8, 16) << shift for shift in range(1, most.bit_length())]
    counts = np.unique(np.concatenate([counts, *coarse, [most]]))
    powers = 1 << np.arange(whole.bit_length(), dtype=np.int64)
    return np.unique(np.concatenate([powers, counts[counts <= most] * whole])).astype(np.int64)


@lru_cache(maxsize=1 << 16)
def pieces_of(slots: int, node_slots: int, unit: int) -> tuple[int, ...]:
    """Return the number of pieces of each power of two (1, 2, 4, ..., `unit`) into which a job of `slots` is
    cut.
    """
    top = unit.bit_length() - 1
    whole, rest = divmod(max(slots, 0), max(node_slots, 1))
    pieces = [whole * (node_slots >> level & 1) + (rest >> level & 1) for level in range(top)]
    return (*pieces, whole * (node_slots >> top) + (rest >> top))


def shapes_of(sizes: IntArray, *, node_slots: IntArray, room: IntArray) -> Shapes:
    """Return the columns for the requested sizes on nodes (N,) with `node_slots`, of which `room` can be
    granted.

    Sizes below 1 are dropped. A size that would not fit although there are enough slots is cut into smaller
    pieces. A size above all capacity stays a column, which no row admits.
    """
    whole = standard_node(node_slots)
    slots = np.unique(sizes[sizes > 0]).astype(np.int64)
    unit = np.full(len(slots), 1 << (whole.bit_length() - 1), dtype=np.int64)
    squeezed = np.zeros(len(slots), dtype=np.bool_)
    for level in range(whole.bit_length() - 1, 0, -1):
        stuck = _in_pieces(slots, whole, level) > _in_blocks(room, level).sum()
        squeezed |= stuck & (slots <= room.sum())
        unit[stuck & (slots <= room.sum())] = 1 << (level - 1)
    nodes = -(-slots // np.where(squeezed, unit, whole))
    nodes = np.where(squeezed, np.minimum(nodes, np.count_nonzero(room > 0)), nodes)
    regular = np.isin(slots, regular_sizes(node_slots))
    return Shapes(node_slots=whole, slots=slots, nodes=nodes, unit=unit, regular=regular)


def offered(shapes: Shapes | SizeGroup, allowed: BoolArray, fits: BoolArray) -> BoolArray:
    """Return the columns (J, C) to offer among those that each job's spec allows (J, C).

    All regular columns, the smallest one and the largest one that `fits` (J, C) are offered; any other one only if no
    regular size within a factor of two is allowed. Without its largest one, a job could never reach its maximum.
    """
    offer = allowed & shapes.regular
    slots = shapes.slots
    for column in np.flatnonzero(~shapes.regular & allowed.any(axis=0)):
        near = shapes.regular & (2 * slots > slots[column]) & (slots < 2 * slots[column])
        offer[:, column] = allowed[:, column] & ~allowed[:, near].any(axis=1)
    some = np.flatnonzero(allowed.any(axis=1))
    if len(some):
        offer[some, allowed[some].argmax(axis=1)] = True
    possible = allowed & fits
    some = np.flatnonzero(possible.any(axis=1))
    if len(some):
        offer[some, possible.shape[1] - 1 - possible[some, ::-1].argmax(axis=1)] = True
    return offer


def packing_rows(
    shapes: Shapes,
    *,
    kind: str,
    room: IntArray,
    exempt: BoolArray | None = None,
    of_column: IntArray | None = None,
) -> tuple[Row, ...]:
    """Return the rows that make every choice placeable, in addition to the row of all slots of the kind.

    `room` (N,) is the number of slots that each node can grant. `of_column` (C,) is the index of the shape of
    each column, -1 for none; without it the columns are the shapes. Jobs that are `exempt` (J,) do not count.
    Rows that others imply are omitted.
    """
    rows: list[Row] = []
    of_column = np.arange(len(shapes.slots)) if of_column is None else of_column
    for level in range(shapes.node_slots.bit_length() - 1, 0, -1):
        capacity = int(_in_blocks(room, level).sum())
        demand = np.append(_demand(shapes, level), 0)[of_column] * 1.0
        implied = capacity >= _in_blocks(room.sum(), level) or not demand.any()
        if not implied and not (rows and np.array_equal(demand, rows[-1].demand)):
            name = f"packing/{kind}/{1 << level}"
            counts = None if exempt is None else ~exempt
            rows.append(Row(name=name, capacity=capacity, demand=demand, jobs=counts))
    return tuple(rows)


def exempt_jobs(
    shapes: Shapes, *, room: IntArray, current: IntArray, holder: IntArray, held: IntArray
) -> BoolArray:
    """Return the jobs (J,) that packing rows must not count, so that every job may stay as it is.

    `current` (J,) is the column of the shapes that each job has, -1 for none. `holder` and `held` (H,) give
    the job and its number of slots, one entry for each job and node. A job may be scattered because nothing
    else was free when it was placed. If the present choice breaks a row, the scattered jobs are exempt: they
    are placed last, on any slots left.
    """
    running = current != NOTHING
    scattered = np.zeros(len(current), dtype=np.bool_)
    broken = False
    for level in range(1, shapes.node_slots.bit_length()):
        demand = (
            np.where(running, _demand(shapes, level)[current], 0) if running.any() else np.zeros(len(current))
        )
        lies = np.bincount(holder, _in_blocks(held, level), minlength=len(current))
        scattered |= lies < demand
        broken = broken or demand.sum() > _in_blocks(room, level).sum()
    return scattered if broken else np.zeros_like(scattered)


def _demand(shapes: Shapes, level: int) -> IntArray:
    """Return the slots (C,) that each column takes in pieces of at least `2^level` that are sure to lie on
    one node.
    """
    return np.where(shapes.unit >> level > 0, _in_pieces(shapes.slots, shapes.node_slots, level), 0)


def _in_pieces(slots: IntArray, node_slots: int, level: int) -> IntArray:
    return slots // node_slots * (node_slots >> level << level) + (slots % node_slots >> level << level)


def _in_blocks(slots: NumberArray, level: int) -> NumberArray:
    return slots >> level << level
