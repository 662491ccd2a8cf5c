"""Speed of a job on the nodes that its placement gives it, which may differ from what its configuration promises."""

from __future__ import annotations

import numpy as np

from headway.contract.values.topology import crossed_level, level_number
from service.domain.allocation.inputs.round import Round
from service.domain.jobs.job import Allocation
from service.domain.perf.levels import reach_at
from service.domain.perf.throughput import step_time


def level_of(round_: Round, allocation: Allocation) -> int:
    """Return the number of the largest topology level at which the nodes of an allocation differ, 0 for none."""
    nodes = round_.snapshot.nodes
    return level_number(crossed_level(nodes[node].labels for node in allocation if node in nodes))


def placed_step_s(round_: Round, row: int, column: int, *, nodes: int, level: int) -> float:
    """Return the seconds of a step of a job with the slots and batch of a column, on these nodes across this level."""
    kind, table = int(round_.columns.by_kind.kind[column]), round_.estimates.table
    models = round_.estimates.learned.models
    step_s, _ = step_time(
        models.throughput[row : row + 1, kind],
        slots=int(round_.columns.configurations.slots[column]),
        nodes=nodes,
        local_batch=table.local_batch[row, column],
        accumulation=max(int(table.accumulation[row, column]) - 1, 0),
        reach=reach_at(models.reach, np.array([level]), np.array([row]), kind, np.array([0])),
    )
    return float(step_s[0])


def placed_share(round_: Round, row: int, column: int, allocation: Allocation) -> float:
    """Return the speed of a job on an allocation relative to its configuration, which crosses as few levels as possible."""
    crosses = round_.columns.configurations.crosses
    promised = 0 if crosses is None else int(crosses[column])
    level = level_of(round_, allocation)
    if level <= promised:
        return 1.0
    nodes = max(len(allocation), 1)
    fast, slow = (placed_step_s(round_, row, column, nodes=nodes, level=one) for one in (promised, level))
    return fast / slow if 0 < fast < slow < np.inf else 1.0
