"""Base of the speedups that users see: the goodput of one slot, and whether it was measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from service.domain.allocation.inputs.round import Round
from service.domain.shared.arrays import IntArray


class OneSlot(NamedTuple):
    """Goodput of a job on one slot. `measured` is False where it is only expected, or assumed of the smallest size."""

    goodput: float
    measured: bool


def one_slot_of(round_: Round, row: int, shown: IntArray) -> OneSlot:
    """Return the base of a job's speedups over the columns `shown`, of which there is at least one.

    The base is a size of one slot, a measured one first. Without such a size it is the goodput per slot of the smallest one.
    """
    goodput, slots = round_.estimates.table.goodput[row, shown], round_.columns.configurations.slots[shown]
    measured = round_.estimates.measured.known[row, shown]
    base = int(np.lexsort((~measured, slots))[0])
    if not goodput[base] > 0:
        return OneSlot(1.0, measured=False)
    return OneSlot(float(goodput[base] / slots[base]), measured=bool(measured[base] and slots[base] == 1))
