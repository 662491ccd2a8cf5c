"""Limits beyond which a rank counts as hung."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.spec_parts import HungAfter

AUTO_HUNG_S = 600.0
"""Time in seconds that most scripts do not exceed between two steps, for an evaluation or a checkpoint.
PyTorch gives a GPU collective the same time.
"""
AUTO_HUNG_STEPS = 50.0
"""Multiple of the usual step time that extends `AUTO_HUNG_S`."""
SET_HUNG_STEPS = 5.0
"""Multiple of the usual step time that extends the job file's limit, since a slow step is not a hung one."""


@dataclass(frozen=True, slots=True)
class HungLimits:
    """Limits beyond which a rank counts as hung: no step for `after_s`, or `factor` times the usual step if
    that is longer.

    With `when_still`, the main thread of the rank must also not have moved meanwhile.
    """

    after_s: float
    factor: float
    when_still: bool


def hung_limits(hung_after: HungAfter) -> HungLimits | None:
    """Return the limits that `hung_after` of a job file stands for; None if hung ranks are not detected."""
    if hung_after == "never":
        return None
    if hung_after == "auto":
        return HungLimits(AUTO_HUNG_S, AUTO_HUNG_STEPS, when_still=True)
    return HungLimits(hung_after, SET_HUNG_STEPS, when_still=False)
