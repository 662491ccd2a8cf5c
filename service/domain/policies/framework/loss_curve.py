"""Loss of a job by its samples, and the samples until it no longer falls (Optimus, EuroSys'18, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.domain.shared.arrays import FloatArray

MIN_POINTS: Final = 4
"""Minimum number of losses for a fit: one more than the curve has parameters."""
MAX_POINTS: Final = 16
"""Maximum number of losses that are kept of a job; when they are full, every second one is dropped."""
_LEAST: Final = 1e-9
"""Smallest loss relative to the largest one that is distinguished from smaller ones."""
_FLOORS: Final = 50
"""Number of floors tried, evenly spaced from 0 to just below the smallest loss."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Curve `loss = 1 / (slope * samples + offset) + floor`, relative to the largest loss of the fit.

    All parameters are at least 0 and the slope is positive: the published model of first-order convergence.
    """

    slope: float
    offset: float
    floor: float

    def at(self, samples: float) -> float:
        """Return the relative loss after so many samples."""
        return 1.0 / (self.slope * samples + self.offset) + self.floor

    def converged_at(self, epoch_samples: float, threshold: float) -> float:
        """Return the samples after which an epoch lowers the relative loss by at most `threshold`."""
        # loss(k) - loss(k + epoch) = step / (u * (u + step)) with u = slope * k + offset.
        step = self.slope * epoch_samples
        u = (math.sqrt(step * step + 4.0 * step / threshold) - step) / 2.0
        return max(0.0, (u - self.offset) / self.slope)


def fit_loss(samples: FloatArray, loss: FloatArray) -> LossCurve | None:
    """Return the curve with the least squared error through losses (P,) after `samples` (P,).

    Return None for fewer than `MIN_POINTS` points, and for a loss that does not fall. For a given floor,
    `1 / (loss - floor)` is a straight line in the samples, fitted by weighted least squares.
    """
    if len(samples) < MIN_POINTS or not loss.min() > 0 or not samples.max() > samples.min():
        return None
    span = float(samples.max())
    x, y = samples / span, np.maximum(loss / loss.max(), _LEAST)
    best, least = None, math.inf
    for floor in np.linspace(0.0, float(y.min()), _FLOORS, endpoint=False).tolist():
        above = y - floor
        # An error of the line counts as the error of the loss that it makes.
        slope, offset = _line(x, 1.0 / above, above**2)
        if slope > 0 and offset > 0:
            error = float(((1.0 / (slope * x + offset) - above) ** 2).sum())
            if error < least:
                best, least = LossCurve(slope / span, offset, floor), error
    return best


def _line(x: FloatArray, y: FloatArray, scale: FloatArray) -> tuple[float, float]:
    """Return slope and offset of the line through (x, y) with the least sum of (scale * error) ** 2."""
    weight = scale**2 / (scale**2).sum()
    mean_x, mean_y = float(weight @ x), float(weight @ y)
    spread = float(weight @ (x - mean_x) ** 2)
    slope = float(weight @ ((x - mean_x) * (y - mean_y))) / spread if spread > 0 else 0.0
    return slope, mean_y - slope * mean_x


def with_point(points: list[list[float]], samples: float, loss: float) -> list[list[float]]:
    """Return the (samples, loss) points of a job with another one, thinned to at most `MAX_POINTS`.

    Points beyond `samples` are dropped: the job fell back to a checkpoint. A loss that is not positive and
    finite, and one at the samples of the last point, is ignored.
    """
    before = [one for one in points if one[0] <= samples]
    if not (0 < loss < math.inf) or (before and before[-1][0] == samples):
        return before
    if len(before) >= MAX_POINTS:
        before = before[::2]
    return [*before, [samples, loss]]
