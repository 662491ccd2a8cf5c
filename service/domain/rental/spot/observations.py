"""Weights of observed interruptions: exponential forgetting, and the reasons that count as a loss. Pure."""

from __future__ import annotations

from typing import Final

from service.domain.rental.machines import MachineReason

HALF_LIFE_H: Final = 72.0
"""Half-life of observations in hours. Spot markets change within days."""
REMEMBERED_H: Final = 10 * HALF_LIFE_H
"""Age in hours beyond which observations are ignored."""
LOST: Final = frozenset(
    {MachineReason.SPOT_RECLAIMED, MachineReason.ENDED_BY_PROVIDER, MachineReason.VANISHED}
)
"""Reasons that count as an interruption by the provider."""


def weight(age_h: float) -> float:
    """Return the weight of an observation of an age in hours."""
    return 0.0 if age_h > REMEMBERED_H else 0.5 ** (max(age_h, 0.0) / HALF_LIFE_H)
