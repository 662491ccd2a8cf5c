"""Statistical efficiency of a batch. Ranks count their progress with it, and the service chooses batches by it.

A step of M samples makes the progress of M * efficiency samples in steps of the reference batch m0 (Pollux,
OSDI'21, section 3.1). With the gradient noise scale phi = var / sqr, the efficiency is (phi + m0) / (phi + M).
Standard library only, because every rank imports it.
"""

from __future__ import annotations

import math


def efficiency(
    batch: float, reference: float, *, sqr: float | None, var: float | None, effect: float = 1.0
) -> float:
    """Return the progress of a sample in steps of `batch`, relative to one in steps of `reference`.

    Args:
        batch: samples in a step, above 0.
        reference: samples in a step of the job's own batch, above 0.
        sqr: squared norm of the true gradient.
        var: trace of the covariance of one sample's gradient.
        effect: exponent of the prediction, 1 where the noise predicts correctly.

    If `sqr` and `var` define no noise scale, neither a larger nor a smaller batch gains anything: a step counts as
    at most one of the reference.
    """
    own = _noise_over(batch, sqr, var)
    if own is None or sqr is None:
        predicted = min(1.0, reference / batch)
    else:
        predicted = (own + sqr * (reference / batch)) / (own + sqr)
    return predicted if effect == 1.0 else predicted**effect


def _noise_over(batch: float, sqr: float | None, var: float | None) -> float | None:
    """Return the noise of a mean over `batch` samples; None if it and `sqr` define no noise scale."""
    if sqr is None or var is None or not (sqr >= 0.0 and var >= 0.0):
        return None
    own = var / batch
    return own if 0.0 < own + sqr < math.inf else None
