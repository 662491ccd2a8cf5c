"""What is left of a speed on machines that may be taken away.

Of `h` losses an hour, each costs the restart `R` and, on average, half of the checkpoint interval `tau` that has to be done
again; every interval costs the checkpoint `delta`:

    share = (1 - delta / tau) / (1 + h (tau / 2 + R))        best tau = sqrt(2 delta / h)   (Young, 1974)

A gang of `n` machines, each taken away so often, loses one `n` times as often.
"""

from __future__ import annotations

import math

HOUR_S = 3600.0
LONGEST_INTERVAL_S = 7 * 24 * HOUR_S
"""Nobody waits longer for a checkpoint, however rarely machines are lost."""


def spot_share(*, losses_per_h: float, checkpoint_s: float, interval_s: float, restart_s: float) -> float:
    """The share of its speed that a job keeps, from 0 to 1.

    `checkpoint_s` is what a checkpoint takes of the training time, `interval_s` how long from one to the next, `restart_s`
    what a loss costs beside the steps that are done again. A job that survives a loss has an interval of 0: nothing is done again, and no checkpoint is needed for it.
    """
    losses_per_s = max(losses_per_h, 0.0) / HOUR_S
    saving = min(max(checkpoint_s, 0.0) / interval_s, 1.0) if interval_s > 0 else 0.0
    return (1.0 - saving) / (1.0 + losses_per_s * (max(interval_s, 0.0) / 2 + max(restart_s, 0.0)))


def best_interval_s(*, losses_per_h: float, checkpoint_s: float) -> float:
    """The interval between checkpoints that leaves most of a speed; never shorter than a checkpoint itself."""
    losses_per_s = max(losses_per_h, 0.0) / HOUR_S
    shortest_s = max(checkpoint_s, 1e-3)
    if losses_per_s <= 0:
        return LONGEST_INTERVAL_S
    return min(max(math.sqrt(2 * shortest_s / losses_per_s), shortest_s), LONGEST_INTERVAL_S)
