"""Tests of the totals and defaults of rental targets."""

from __future__ import annotations

import pytest

from service.domain.rental.rental_targets import Fleet, RentalRules, RentalTargets
from tests.unit.service.builders import machine_of


@pytest.mark.parametrize(("prices", "total"), [([], 0), ([3.6], 3.6), ([3.6, 0.4, 0.0], 4.0)])
def test_a_fleet_costs_all_of_its_machines_joined_or_not(prices: list[float], total: float) -> None:
    machines = [machine_of(f"m{number}", usd_per_h=usd) for number, usd in enumerate(prices)]
    assert Fleet(machines=machines, nodes={"m0": "n0"}).usd_per_h() == pytest.approx(total)


def test_without_rules_there_are_ten_machines_at_most_and_no_limit_on_dollars() -> None:
    rules = RentalRules()
    assert (rules.max_machines, rules.max_usd_per_h, rules.idle_s) == (10, None, 120.0)


def test_without_targets_nothing_changes() -> None:
    targets = RentalTargets()
    assert (targets.rent, targets.release, targets.held_back) == ((), (), "")
    assert not targets.low_since
