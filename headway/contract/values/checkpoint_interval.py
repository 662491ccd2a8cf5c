"""The interval between periodic checkpoints. Ranks follow it, and the service and the simulator count with it.

It is Daly's first-order optimum, sqrt(2 * cost * MTBF) - cost (J. T. Daly, "A higher order estimate of the
optimum checkpoint interval for restart dumps", 2006). It balances the cost of saving against the work lost in
a failure. Standard library only, because every rank imports it.
"""

from __future__ import annotations

import math

SHORTEST_S = 30.0
LONGEST_S = 1800.0
WRITES = 2.0
"""Shortest interval in multiples of the total duration of a save, to limit the load on storage."""
CHEAP_PAUSE = 0.001
"""Share of the time for which saves may pause training, however rare losses are.

The expected losses are those of machines. A process can also end by a signal, a bug or lack of memory.
"""
CHEAP_WRITES = 0.1
"""Share of the time for which saves may write to storage on these terms."""
_HOUR_S = 3600.0


def checkpoint_interval_s(*, losses_per_h: float, cost_s: float, total_s: float = 0.0) -> float:
    """Return the seconds between two checkpoints, from `SHORTEST_S` to `LONGEST_S`.

    `losses_per_h` counts the losses after which training returns to a checkpoint. A save pauses training for
    `cost_s` and ends `total_s` after its start. Saves that are cheap enough (`CHEAP_PAUSE`, `CHEAP_WRITES`) are more
    frequent than the optimum.
    """
    mtbf_s = _HOUR_S / losses_per_h if losses_per_h > 0 else math.inf
    cheap_s = max(cost_s / CHEAP_PAUSE, total_s / CHEAP_WRITES)
    wanted = max(min(best_interval_s(max(cost_s, 0.0), mtbf_s), cheap_s), WRITES * total_s)
    return min(max(wanted, SHORTEST_S), LONGEST_S)


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return Daly's interval; the mean time between losses itself if a save costs more than half of it."""
    if math.isinf(mtbf_s) or cost_s >= mtbf_s / 2:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s) - cost_s
