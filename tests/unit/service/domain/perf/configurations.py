"""Configurations of two kinds for tests of goodput tables, and measurements of them."""

from __future__ import annotations

import numpy as np

from service.domain.perf.tables import Observed
from service.domain.policies.framework.policy import Configurations

SLOTS = np.array([1, 2, 3, 8, 16, 1, 4, 64])
CONFIGURATIONS = Configurations(
    kinds=("a", "b"),
    kind=np.array([0, 0, 0, 0, 0, 1, 1, 1]),
    slots=SLOTS,
    nodes=np.maximum(1, SLOTS // 4),
    usd_per_h=np.zeros(8),
)
WIDTH = SLOTS.size


def observed(*rows: tuple[float, ...]) -> Observed:
    job, column, speed, batch, steps = np.array(rows, float).reshape(-1, 5).T
    return Observed(
        job=job.astype(np.int64),
        column=column.astype(np.int64),
        samples_per_s=speed,
        global_batch=batch,
        steps=steps,
    )
