"""Settings of a cluster for jobs that compete for slots."""

from __future__ import annotations

from dataclasses import dataclass

RUN_COSTS = 20.0
"""Minimum ratio of a run's length to the cost of its start and stop, so that they take at most 5 % of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionRules:
    """Settings for jobs that compete for slots.

    Attributes:
        min_run_s: minimum run time in seconds before a started job may be vacated for another job's gain. The
            limit is `RUN_COSTS` times the cost of its start and stop if that is more.
        max_wait_s: seconds after which a waiting job gets its turn while the minimums of all jobs do not fit.
    """

    min_run_s: float = 60.0
    max_wait_s: float = 1800.0


USUAL = ContentionRules()
"""Default rules of a cluster."""
