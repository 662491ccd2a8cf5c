"""Tests of the risks of spot machines, by pool and by the machine's own place."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import TOGETHER
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.spot.hazards import coming_hazard_per_h, hazard_counts
from service.domain.rental.spot.history import NO_HISTORY, spot_history
from tests.unit.service.builders import NOW, machine_of


def lease(machine_id: str, zone: str, *, lost: bool = False, **fields: object) -> Machine:
    """A spot lease since two hours ago, which ended an hour ago if it was lost."""
    ended = NOW - timedelta(hours=1) if lost else None
    return machine_of(
        machine_id,
        zone=zone,
        state=MachineState.GONE if lost else MachineState.RUNNING,
        reason=MachineReason.SPOT_RECLAIMED if lost else MachineReason.JOINED,
        billed_from=NOW - timedelta(hours=2),
        billed_to=ended,
        **fields,
    )


LEASES = [lease("m1", "a"), lease("m2", "b"), *[lease(f"l{number}", "a", lost=True) for number in range(3)]]


def test_a_machine_has_the_risk_of_its_place_and_a_pool_that_of_all_places() -> None:
    found = spot_history(LEASES, {"cpu": 0.1}, NOW)
    counts = hazard_counts(LEASES, NOW)
    assert set(found.by_machine) == {"m1", "m2"}
    rough, calm = found.by_machine["m1"], found.by_machine["m2"]
    assert rough.per_h == pytest.approx(coming_hazard_per_h(0.1, counts["cloud", "small", "a"], NOW))
    assert rough.per_h > found.by_pool["cpu (spot)"] > calm.per_h
    assert calm.together == TOGETHER
    assert rough.together < TOGETHER, "three of four machines were taken"


def test_without_leases_there_are_the_priors() -> None:
    found = spot_history([], {"t4": 0.06}, NOW)
    assert found.by_pool == {"t4 (spot)": pytest.approx(0.06)}
    assert found.by_machine == NO_HISTORY.by_machine == {}


def test_leases_on_demand_have_no_risk() -> None:
    assert spot_history([lease("m1", "a", market=Market.ON_DEMAND)], {}, NOW) == NO_HISTORY
