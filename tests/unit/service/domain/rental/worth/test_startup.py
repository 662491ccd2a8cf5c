"""Tests of the paid hours in which no job uses a machine."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental.candidates import Candidate
from service.domain.rental.machines import MachineState
from service.domain.rental.worth.prices import Startup
from service.domain.rental.worth.startup import USUAL_BOOT_S, boot_times, unused_s
from tests.unit.service.builders import NOW
from tests.unit.service.domain.rental.worth.tables import rented, single


@pytest.mark.parametrize(
    ("use_s", "boot_s", "idle_s", "min_billed_s", "expected"),
    [
        (3600.0, 120.0, 0.0, 60.0, 120.0),
        (3600.0, 120.0, 30.0, 60.0, 150.0),
        (0.0, 20.0, 0.0, 60.0, 60.0),
        (10.0, 20.0, 0.0, 60.0, 50.0),
        (50.0, 20.0, 0.0, 60.0, 20.0),
        (600.0, 0.0, 0.0, 3600.0, 3000.0),
        (600.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_a_start_and_the_rest_of_the_minimum_are_unused(
    use_s: float, boot_s: float, idle_s: float, min_billed_s: float, expected: float
) -> None:
    assert unused_s(use_s, boot_s=boot_s, idle_s=idle_s, min_billed_s=min_billed_s) == expected


@given(*(st.floats(0.0, 1e5) for _ in range(4)))
def test_the_paid_time_is_never_below_the_minimum_nor_the_use(
    use_s: float, boot_s: float, idle_s: float, min_billed_s: float
) -> None:
    paid_s = use_s + unused_s(use_s, boot_s=boot_s, idle_s=idle_s, min_billed_s=min_billed_s)
    assert paid_s >= max(use_s + boot_s + idle_s, min_billed_s) - 1e-6


def test_boots_are_the_median_of_running_machines_by_type() -> None:
    def after(seconds: float, instance_type: str = "single", **fields: object) -> dict[str, object]:
        return {
            "instance_type": instance_type,
            "requested_at": NOW,
            "state_since": NOW + timedelta(seconds=seconds),
            **fields,
        }

    machines = [
        *rented(1, **after(60.0)),
        *rented(1, **after(100.0)),
        *rented(1, **after(500.0)),
        *rented(1, **after(40.0, "large")),
        *rented(1, **after(9999.0, state=MachineState.ENDING)),
        *rented(1, **after(-5.0, "skewed")),
    ]
    assert boot_times(machines) == {
        ("cloud", "single"): 100.0,
        ("cloud", "large"): 40.0,
        ("cloud", "skewed"): 0.0,
    }
    assert boot_times([]) == {}


def test_a_type_without_a_measurement_has_the_usual_boot() -> None:
    startup = Startup(boot_s={("cloud", "single"): 30.0}, idle_s=10.0)
    known, unknown = (
        Candidate(single(instance_type=name), Market.ON_DEMAND, 1.0) for name in ("single", "other")
    )
    assert startup.boot_of(known) == 30.0
    assert startup.boot_of(unknown) == USUAL_BOOT_S
    assert startup.used_share(known, 360.0) == pytest.approx(360.0 / 400.0)
    assert startup.used_share(unknown, 260.0) == pytest.approx(2 / 3)
    assert startup.used_share(known, 0.0) == 0.0


@pytest.mark.parametrize("minimum_s", [float("nan"), float("inf"), -1.0])
def test_an_invalid_minimum_counts_as_none(minimum_s: float) -> None:
    candidate = Candidate(single(min_billed_s=minimum_s), Market.ON_DEMAND, 1.0)
    assert Startup(boot_s={("cloud", "single"): 0.0}).used_share(candidate, 60.0) == 1.0
