"""Columns of a world that stand for the columns of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray, IntArray
from service.simulation.model.clusters import parts_by_kind
from service.simulation.model.world import Kind


def places_of(columns: Columns, configurations: Configurations) -> IntArray:
    """Return, for each column of a round (C,), the world's column of the same kinds with the fewest sufficient slots.

    The kinds of a world are pools. A column in both markets counts fully on the spot market.
    """
    given = columns.configurations
    wanted = parts_by_kind(given)
    mixed = columns.by_kind.mixed
    wanted[mixed] = columns.parts[mixed]
    offered = parts_by_kind(configurations)
    at = [given.kinds.index(name) for name in configurations.kinds]
    absent = np.delete(wanted, at, axis=1).any(axis=1)
    place = np.full(len(wanted), NOTHING, dtype=np.int64)
    for column in np.flatnonzero(~absent).tolist():
        parts = wanted[column, at]
        enough = (offered >= parts).all(axis=1) & ((offered > 0) == (parts > 0)).all(axis=1)
        if enough.any():
            place[column] = np.where(enough, configurations.slots, np.iinfo(np.int64).max).argmin()
    return place


def fitting(
    holds: IntArray, goodput: FloatArray, configurations: Configurations, kinds: Sequence[Kind]
) -> IntArray:
    """Return the columns that jobs hold (J,), reduced where the slots are not enough.

    Columns that were rounded up to larger ones, or counted fully on the spot market, may exceed the slots.
    Such a job continues with the largest column that fits.
    """
    free, parts = np.array([kind.slots for kind in kinds], dtype=np.int64), parts_by_kind(configurations)
    found = holds.copy()
    for job in np.flatnonzero(holds != NOTHING).tolist():
        held = parts[holds[job]]
        fits = (parts <= np.minimum(held, free)).all(axis=1) & ((parts > 0) == (held > 0)).all(axis=1)
        slots = np.where(fits & (goodput[job] > 0), configurations.slots, 0)
        found[job] = int(slots.argmax()) if slots.any() else NOTHING
        free -= parts[found[job]] if slots.any() else 0
    return found
