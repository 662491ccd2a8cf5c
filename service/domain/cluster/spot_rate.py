"""Losses of machines, and the effective speed of a job despite them.

With `h` losses an hour, each loss costs the restart `R` and, on average, half of the checkpoint interval
`tau`, which is repeated. Each interval costs the checkpoint `delta`:

    share = (1 - delta / tau) / (1 + h (tau / 2 + R))        best tau = sqrt(2 delta / h)   (Young, 1974)

A gang of `n` machines with the same loss rate loses a machine `n` times as often. The interval itself is
`headway.contract.values.checkpoint_interval`, by which ranks save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HOUR_S = 3600.0
FAILURES_PER_H: Final = 6.5e-3 / 24
"""Failures of a machine per hour that no market causes: 6.5 in a thousand days.

Measured over eleven months of a cluster of 16,000 GPUs (Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters", HPCA'25).
"""
TOGETHER: Final = 0.45
"""Share of the losses seen by one of several machines in a zone that take all of the machines at once.

In the traces of 4 and 16 V100s of "Can't Be Late", it is 0.1 to 0.8 by zone, with a median of 0.5.
"""


def checkpoint_losses_per_h(
    machines: Sequence[float], *, in_place: bool, together: float = TOGETHER
) -> float:
    """Return the losses per hour after which a job returns to its checkpoint.

    `machines` are the losses per hour of each machine that the job holds. A job that changes members in place
    needs its checkpoint only when all machines go at once, which is the share `together` of the losses of the
    safest one. Any other job needs it at every loss.
    """
    if in_place and len(machines) > 1:
        return together * min(machines)
    return sum(machines)


def spot_share(*, losses_per_h: float, checkpoint_s: float, interval_s: float, restart_s: float) -> float:
    """Return the share of its speed that a job keeps, from 0 to 1.

    `checkpoint_s` is the training time that a checkpoint takes, and `interval_s` the time between
    checkpoints. `restart_s` is the cost of a loss without the repeated steps. A job that survives a loss has
    an interval of 0: it repeats no steps, and no checkpoint is needed for losses.
    """
    losses_per_s = max(losses_per_h, 0.0) / HOUR_S
    saving = min(max(checkpoint_s, 0.0) / interval_s, 1.0) if interval_s > 0 else 0.0
    return (1.0 - saving) / (1.0 + losses_per_s * (max(interval_s, 0.0) / 2 + max(restart_s, 0.0)))


def is_pressed(*, left_s: float, work_s: float, change_s: float, changes: int) -> bool:
    """Return whether a job must be on on-demand machines: the time left is just enough for its work and these changes.

    This is the safety net of NSDI'24, section 4.
    """
    return left_s <= work_s + changes * change_s
