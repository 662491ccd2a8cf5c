"""Factors of synchronisation across topology levels, fitted beside the throughput models. Pure.

Links belong to a level, so the cost of a level is one factor on a job's synchronisation across nodes. The base fit of an
owner uses its steps on one node and those that crossed its *lowest* level; it stays as well-posed as without levels. Steps
that crossed a higher level give that level's factor: the synchronisation that they imply, relative to the base model.

A level without measurements takes the factor of the level below times the ratio of the prior. Factors never decrease with
the level, so a prediction across a higher level is never faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from headway.contract.values.topology import LEVELS
from service.domain.perf.fit import fit
from service.domain.perf.observations import Observations, believable
from service.domain.perf.throughput import ThroughputModel, compute_time, sync_features
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

PRIOR_REACH: Final = 1.2 ** np.arange(1.0, len(LEVELS) + 1)
"""Factor of each level before any measurement. It increases with the level."""
_PRIOR_WEIGHT: Final = 0.05
"""Weight of the prior factor, as a measurement of many steps with visible synchronisation has weight 1."""
_STEPS_HALF_TRUSTED: Final = 10.0
"""Number of steps at which a measurement has half of its weight."""
_HIDDEN: Final = 0.1
"""Synchronisation, as a share of compute, at which a measurement has a quarter of its weight: compute hides the rest."""
_SMALLEST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class FittedSpeeds:
    """Throughput models (owners, kinds), and their factors (owners, kinds, LEVELS); None: those of the prior."""

    models: ThroughputModel
    reach: FloatArray | None

    def of_rows(self, rows: IntArray) -> FittedSpeeds:
        """Return the speeds of these owners, in that order."""
        return FittedSpeeds(self.models[rows], None if self.reach is None else self.reach[rows])


def reach_at(
    reach: FloatArray | None,
    crosses: IntArray | None,
    rows: IntArray,
    kind: IntArray | int,
    columns: IntArray,
) -> FloatArray | None:
    """Return the factor of the level that each column crosses, for jobs `rows` that broadcast with `columns`.

    `reach` has shape (J, K, LEVELS). The result is None if no column crosses a level.
    """
    if crosses is None or not crosses[columns].any():
        return None
    level = crosses[columns]
    factor = PRIOR_REACH[level - 1] if reach is None else reach[rows, kind, level - 1]
    return np.where(level > 0, factor, 1.0)


def combined(first: FloatArray | None, second: FloatArray | None, mask: BoolArray) -> FloatArray | None:
    """Return `first` (owners, LEVELS) where the mask (owners,) is true and `second` elsewhere."""
    if first is None and second is None:
        return None
    known = (PRIOR_REACH if one is None else one for one in (first, second))
    return np.where(mask[:, None], *known)


def fit_with_levels(
    observations: Observations,
    levels: IntArray,
    owners: int,
    class_prior: ThroughputModel | None = None,
    class_reach: FloatArray | None = None,
) -> tuple[ThroughputModel, FloatArray | None]:
    """Return the fitted models (owners,) and their factors (owners, LEVELS), None if nothing is known about them.

    `levels` (O,) is the number of the level that each observation crossed. `class_prior` and `class_reach` (owners, ...)
    are those of jobs of the same class.
    """
    true = believable(observations, owners)
    across = true & (levels > 0) & (observations.nodes > 1)
    if not across.any():
        return fit(observations, owners, class_prior), class_reach
    observations, levels = observations[true], np.where(across, levels, 0)[true]
    owner, several = observations.owner, observations.nodes > 1
    believed = np.repeat(PRIOR_REACH[None], owners, axis=0) if class_reach is None else class_reach
    lowest = np.full(owners, len(LEVELS))
    np.minimum.at(lowest, owner[several], levels[several])
    base = ~several | (levels == lowest[owner])
    factors = np.concatenate([np.ones((owners, 1)), believed], axis=1)[owner, levels]
    fitted = fit(observations[base], owners, class_prior, factors[base])
    models = replace(
        fitted,
        slots_tried=_largest(fitted.slots_tried, observations.slots, owner),
        nodes_tried=_largest(fitted.nodes_tried, observations.nodes, owner),
    )
    return models, _factors(fitted, observations[~base], levels[~base], believed)


def _largest(known: FloatArray, values: FloatArray, owner: IntArray) -> FloatArray:
    largest = known.copy()
    np.maximum.at(largest, owner, values)
    return largest


def _factors(
    fitted: ThroughputModel, observed: Observations, levels: IntArray, believed: FloatArray
) -> FloatArray:
    """Return the factor of each level (owners, LEVELS): the mean of its measurements and of the prior, in the logarithm."""
    ratio, weight = _implied(fitted[observed.owner], observed)
    at = observed.owner * len(LEVELS) + levels - 1
    total = np.bincount(at, weight, believed.size).reshape(believed.shape)
    measured = np.bincount(at, weight * np.log(ratio), believed.size).reshape(believed.shape)
    prior = np.log(believed)
    steps = np.diff(prior, axis=1, prepend=0.0)
    known: BoolArray = total > 0
    found = np.empty_like(prior)
    below = np.zeros(len(prior))
    for level in range(len(LEVELS)):
        borrowed = below + steps[:, level]
        mean = (measured[:, level] + _PRIOR_WEIGHT * borrowed) / (total[:, level] + _PRIOR_WEIGHT)
        # Unmeasured levels below a measured one do not exceed it.
        above = np.where(
            known[:, level:], measured[:, level:] / np.maximum(total[:, level:], _SMALLEST), np.inf
        )
        found[:, level] = np.where(known[:, level], mean, np.minimum(borrowed, above.min(axis=1)))
        below = found[:, level] = np.maximum(found[:, level], below)
    return np.exp(found)


def _implied(model: ThroughputModel, observed: Observations) -> tuple[FloatArray, FloatArray]:
    """Return the synchronisation that steps imply relative to the model (O,), and the weight of each.

    The weight is small where compute hides the synchronisation, which then hardly shows in the step.
    """
    names = ("alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")
    features = sync_features(observed.slots, observed.nodes)
    wire = sum(getattr(model, name) * one for name, one in zip(names, features, strict=True))
    compute = compute_time(model, observed.local_batch)
    last = np.maximum(observed.step_s - observed.accumulation * compute, compute)
    # The inverse of the overlap: last ** gamma = compute ** gamma + sync ** gamma.
    hidden = np.minimum((compute / last) ** model.gamma, 1.0)
    sync = last * np.maximum(1.0 - hidden, _SMALLEST) ** (1.0 / model.gamma)
    share = sync / compute
    trust = observed.count / (observed.count + _STEPS_HALF_TRUSTED)
    weight = trust * (share / (share + _HIDDEN)) ** 2
    possible = np.isfinite(sync) & (wire > 0) & (compute > 0)
    ratio = np.where(possible, sync / np.where(possible, wire, 1.0), 1.0)
    return np.maximum(ratio, _SMALLEST), np.where(possible, weight, 0.0)
