"""Depths of structured partial back-propagation: shares of a model's layers through which ranks back-propagate.

With n ranks there are n *levels*, evenly spaced from the smallest depth to the whole model. In every step each rank
has another level (SPB, Kumar et al., 2021).
"""

from __future__ import annotations

FORWARD = 1 / 3
"""Share of the forward pass in the time of a sample; the backward pass computes two gradients for each layer."""


def level_depths(min_depth: float, ranks: int) -> tuple[float, ...]:
    """Return the depth of each level, ascending: `ranks` depths from `min_depth` to 1, evenly spaced.

    A rank alone goes through the whole model.
    """
    if ranks == 1:
        return (1.0,)
    return tuple(min_depth + (1.0 - min_depth) * level / (ranks - 1) for level in range(ranks))


def mean_depth(min_depth: float, ranks: int) -> float:
    """Return the mean depth of the levels."""
    return 1.0 if ranks == 1 else (1.0 + min_depth) / 2


def cost(depth: float) -> float:
    """Return the time of a sample that is back-propagated through a share `depth` of the layers, relative to all."""
    return FORWARD + (1.0 - FORWARD) * depth


def step_cost(min_depth: float, ranks: int) -> float:
    """Return the computing time of a step relative to one at full depth, where all ranks finish together.

    Ranks take samples in inverse proportion to their costs, so it is the harmonic mean of the costs.
    """
    return ranks / sum(1.0 / cost(depth) for depth in level_depths(min_depth, ranks))
