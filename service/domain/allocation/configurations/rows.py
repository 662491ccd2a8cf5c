"""Rows that limit the configurations of a round to the slots of the cluster."""

from __future__ import annotations

from collections import Counter

import numpy as np

from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.configurations.shapes import exempt_jobs, packing_rows
from service.domain.allocation.knapsack.problem import Row
from service.domain.shared.arrays import BoolArray, IntArray


def rows_of(scope: RoundScope) -> tuple[tuple[Row, ...], BoolArray]:
    """Return the rows of the columns, and the jobs (J,) that the packing rows exempt.

    The slots of each pool come first, then the rows that make every choice placeable.
    """
    columns = scope.columns
    rows = [
        Row(
            name=f"slots/{name}",
            capacity=float(capacity.room.sum()),
            demand=columns.demand[:, index].astype(np.float64),
        )
        for index, (name, capacity) in enumerate(scope.capacities.items())
    ]
    exempt = np.zeros(len(scope.jobs), dtype=np.bool_)
    for index, (name, capacity) in enumerate(scope.capacities.items()):
        shapes, of_column = columns.shapes[index], columns.shape[:, index]
        holder, held = _held_by_node(scope, name)
        exempt_here = exempt_jobs(
            shapes,
            room=capacity.room,
            current=np.append(of_column, -1)[scope.current],
            holder=holder,
            held=held,
        )
        rows += packing_rows(shapes, kind=name, room=capacity.room, exempt=exempt_here, of_column=of_column)
        exempt |= exempt_here
    return tuple(rows), exempt


def _held_by_node(scope: RoundScope, pool: str) -> tuple[IntArray, IntArray]:
    """Return job indices and numbers of held slots in a pool, with an entry for each job and node."""
    holder: list[int] = []
    held: list[int] = []
    for index, holding in enumerate(scope.holdings.values()):
        by_node = Counter(key.node_id for key in holding.by_pool.get(pool, ()))
        holder += [index] * len(by_node)
        held += by_node.values()
    return np.array(holder, dtype=np.int64), np.array(held, dtype=np.int64)
