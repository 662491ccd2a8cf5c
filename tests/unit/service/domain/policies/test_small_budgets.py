"""A long-run budget that cannot pay all jobs at their cheapest limits the machines."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from service.domain.policies.budget import BudgetPolicy, BudgetState
from service.domain.policies.framework.class_statistics import ClassStatistics
from service.domain.policies.framework.policy import RoundHistory
from tests.unit.service.domain.policies.rounds import a_round


def advanced(usd_per_h: float, state: BudgetState) -> float:
    """Return the maximum dollars per hour of machines for three jobs of one or two slots at $1 each."""
    given = a_round([[1.0, 1.5]] * 3, [1, 2], capacity=6)
    stored = {
        "budget": dataclasses.asdict(state),
        "classes": dataclasses.asdict(ClassStatistics()),
    }
    history = RoundHistory(
        elapsed_s=0.0,
        usd_per_h=0.0,
        job_ids=["a", "b", "c"],
        classes=["x"] * 3,
        samples=np.full(3, np.nan),
        state=stored,
    )
    return BudgetPolicy(usd_per_h=usd_per_h).advance(given, history)[0].rents_usd_per_h


@pytest.mark.parametrize(
    ("usd_per_h", "ahead_h", "most_usd_per_h"),
    [
        (3.0, 0.0, -1.0),
        (2.0, 0.0, 2.0),
        (2.0, -1.5, 5.0),
        (2.0, 0.25, 1.5),
        (2.0, 4.0, 0.0),
        (-1.0, 0.0, -1.0),
    ],
)
def test_a_budget_below_the_cheapest_sizes_limits_the_machines(
    usd_per_h: float, ahead_h: float, most_usd_per_h: float
) -> None:
    """Money left over is spent within an hour; what was spent in advance is saved in an hour."""
    assert advanced(usd_per_h, BudgetState(ahead_h=ahead_h)) == pytest.approx(most_usd_per_h)
