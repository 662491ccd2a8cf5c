"""Paid time of a machine beside the time for which jobs use it: its start, its last idle time, and minimum billing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from service.domain.rental.machines import Machine, MachineState
from service.domain.shared.arrays import FloatArray

USUAL_BOOT_S = 120.0
"""Seconds from the decision to rent until the agent joins, for a type of machine without a measurement."""


def boot_times(machines: Iterable[Machine]) -> Mapping[tuple[str, str], float]:
    """Return the median seconds from the decision until the agent joined, by provider and instance type.

    Only running machines count: the time at which another machine's agent joined is not stored.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    for one in machines:
        if one.state is MachineState.RUNNING:
            boot_s = max(0.0, (one.state_since - one.requested_at).total_seconds())
            seconds.setdefault((one.provider, one.instance_type), []).append(boot_s)
    return {place: median(each) for place, each in seconds.items()}


def unused_s(
    use_s: FloatArray | float, *, boot_s: FloatArray | float, idle_s: float, min_billed_s: FloatArray | float
) -> FloatArray:
    """Return the seconds of a machine that are paid for and not used, if jobs use it for `use_s` seconds.

    The machine boots first, and is kept for `idle_s` after its last job. It is paid for at least
    `min_billed_s`. The arguments may be arrays whose shapes broadcast.
    """
    return np.maximum(np.maximum(boot_s + idle_s, np.subtract(min_billed_s, use_s)), 0.0)
