"""Effective speed on machines that may be interrupted.

With `h` losses an hour, each loss costs the restart `R` and, on average, half of the checkpoint interval
`tau`, which is repeated. Each interval costs the checkpoint `delta`:

    share = (1 - delta / tau) / (1 + h (tau / 2 + R))        best tau = sqrt(2 delta / h)   (Young, 1974)

A gang of `n` machines with the same loss rate loses a machine `n` times as often.
"""

from __future__ import annotations

import math

HOUR_S = 3600.0
LONGEST_INTERVAL_S = 7 * 24 * HOUR_S
"""Longest checkpoint interval, used even if losses are very rare."""


def spot_share(*, losses_per_h: float, checkpoint_s: float, interval_s: float, restart_s: float) -> float:
    """Return the share of its speed that a job keeps, from 0 to 1.

    `checkpoint_s` is the training time that a checkpoint takes, and `interval_s` the time between
    checkpoints. `restart_s` is the cost of a loss without the repeated steps. A job that survives a loss has
    an interval of 0: it repeats no steps, and no checkpoint is needed for losses.
    """
    losses_per_s = max(losses_per_h, 0.0) / HOUR_S
    saving = min(max(checkpoint_s, 0.0) / interval_s, 1.0) if interval_s > 0 else 0.0
    return (1.0 - saving) / (1.0 + losses_per_s * (max(interval_s, 0.0) / 2 + max(restart_s, 0.0)))


def best_interval_s(*, losses_per_h: float, checkpoint_s: float) -> float:
    """Return the interval between checkpoints that keeps the most speed. It is never shorter than a checkpoint."""
    losses_per_s = max(losses_per_h, 0.0) / HOUR_S
    shortest_s = max(checkpoint_s, 1e-3)
    if losses_per_s <= 0:
        return LONGEST_INTERVAL_S
    return min(max(math.sqrt(2 * shortest_s / losses_per_s), shortest_s), LONGEST_INTERVAL_S)


def is_pressed(*, left_s: float, work_s: float, change_s: float, changes: int) -> bool:
    """Return whether a job must be on on-demand machines: the time left is just enough for its work and these changes.

    This is the safety net of NSDI'24, section 4.
    """
    return left_s <= work_s + changes * change_s
