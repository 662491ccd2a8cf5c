"""The autoscaling of Pollux and the interpolation by dollars in the curve of budgets."""

from __future__ import annotations

import pytest

from benchmarks.budget_curve import UtilityBand, hours_for
from service.domain.allocation.knapsack.solver import solve
from service.domain.policies.pollux import Pollux
from service.domain.rental.rental_targets import Fleet, RentalRules, RentalTerms
from tests.unit.service.domain.rental.worth.tables import TableCluster, power, rented, single

FOUR = single(devices=4, on_demand_usd_per_h=4.0)
TERMS = RentalTerms(rules=RentalRules(), policy=Pollux(), solve=solve)


def changed(speed: list[float], present: int, middle: float = 0.5) -> int:
    """The number of nodes after a decision, with one job of these speeds."""
    machines = rented(present)
    fleet = Fleet(machines=machines, nodes={one.id: one.id for one in machines})
    targets = UtilityBand(middle).targets(TableCluster([speed]), fleet, [FOUR], TERMS)
    return present + len(targets.rent) - len(targets.release)


def test_nodes_follow_the_utility_of_a_slot() -> None:
    """With perfect speedup up to 16 slots, 32 slots have the utility 0.5. The root of 4 slots is half of them."""
    assert changed(power(1.0), 0) == 8
    assert changed(power(0.5), 0) == 1


@pytest.mark.parametrize(("present", "after"), [(6, 8), (7, 7), (8, 8), (11, 11), (12, 8)])
def test_nodes_are_kept_within_the_band(present: int, after: int) -> None:
    """16 of 28 slots are 0.57, of 44 slots 0.36; of 24 slots 0.67 and of 48 slots 0.33 are outside of 0.35 to 0.65."""
    assert changed(power(1.0), present) == after


def test_without_jobs_all_nodes_go_back() -> None:
    machines = rented(3)
    fleet = Fleet(machines=machines, nodes={one.id: one.id for one in machines})
    targets = UtilityBand(0.5).targets(TableCluster([]), fleet, [FOUR], TERMS)
    assert (len(targets.rent), len(targets.release)) == (0, 3)


def test_hours_are_interpolated_by_dollars_in_logarithms() -> None:
    curve = [(100.0, 1.0), (400.0, 0.25)]
    assert hours_for(curve, 200.0) == pytest.approx(0.5)
    assert hours_for(curve, 400.0) == pytest.approx(0.25)
    assert hours_for(curve, 900.0) == pytest.approx(0.25)
    assert hours_for(curve, 99.0) is None
