"""Tests of the limits on renting, of the hysteresis, and of the messages of rental targets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Cap, Snapshot
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.rental_targets import RentalRules
from service.domain.rental.worth.prices import GOOD_BUY, HYSTERESIS
from tests.unit.service.builders import NOW, snapshot_of
from tests.unit.service.domain.rental.decisions.test_autoscale import (
    GOOD_SCALING,
    LONG_AGO,
    decided,
    idle_since,
    machine_of,
    measured,
    node_for,
    offer_of,
    runs,
    waiting,
)


def busy(machines: list[Machine], *, rates: Any = GOOD_SCALING, **fields: Any) -> Snapshot:
    """One job that holds all slots of these machines."""
    held = [(f"n-{one.id}", slot) for one in machines for slot in range(one.slots)]
    return snapshot_of([node_for(one) for one in machines], [runs(**fields)], {"gpt": held}, {"gpt": rates})


def test_the_cheaper_the_objective_the_better_a_buy_has_to_be() -> None:
    assert GOOD_BUY["cost"] > GOOD_BUY["balanced"] > GOOD_BUY["time"] > 0
    assert HYSTERESIS > 1


@pytest.mark.parametrize(("most", "rented"), [(0, 0), (1, 1), (2, 2), (3, 3), (10, 3)])
def test_no_more_machines_than_the_rules_allow(most: int, rented: int) -> None:
    """Three jobs of one slot each wait."""
    jobs = [waiting(f"j{number}", elastic={"min": 1, "max": 1}) for number in range(3)]
    targets = decided(snapshot_of(jobs=jobs), [offer_of(slots=1)], rules=RentalRules(max_machines=most))
    assert len(targets.rent) == rented
    assert bool(targets.held_back) is (rented < 3)


def test_machines_that_are_rented_already_count() -> None:
    jobs = [waiting(f"j{number}", elastic={"min": 2, "max": 2}) for number in range(3)]
    snapshot, rules = snapshot_of(jobs=jobs), RentalRules(max_machines=2)
    fleet = [machine_of("m1", MachineState.LAUNCHING)]
    assert len(decided(snapshot, [offer_of()], fleet, rules=rules).rent) == 1
    fleet.append(machine_of("m2", MachineState.ENDING))
    assert decided(snapshot, [offer_of()], fleet, rules=rules).rent == (), "it is paid for until it is gone"


def test_the_dollars_of_machines_that_are_rented_already_count() -> None:
    jobs = [waiting(f"j{number}", elastic={"min": 2, "max": 2}) for number in range(3)]
    rules = RentalRules(max_usd_per_h=0.45)
    fleet = [machine_of("m1", MachineState.LAUNCHING)]
    assert len(decided(snapshot_of(jobs=jobs), [offer_of()], rules=rules).rent) == 2
    assert len(decided(snapshot_of(jobs=jobs), [offer_of()], fleet, rules=rules).rent) == 1


@pytest.mark.parametrize(
    ("caps", "limit", "rented"),
    [
        ((), None, 3),
        ((Cap("all", None, 0.2),), None, 2),
        ((Cap("all", None, 0.2),), 0.1, 1),
        ((Cap("all", None, 0.1), Cap("more", None, 0.2)), None, 1),
        ((Cap("all", None, 0.0),), None, 0),
    ],
)
def test_the_smallest_limit_on_dollars_counts(
    caps: tuple[Cap, ...], limit: float | None, rented: int
) -> None:
    """Machines of one slot at ten cents, for three jobs."""
    jobs = [waiting(f"j{number}", elastic={"min": 1, "max": 1}) for number in range(3)]
    snapshot = replace(snapshot_of(jobs=jobs), caps=caps)
    rules = RentalRules(max_usd_per_h=limit)
    assert len(decided(snapshot, [offer_of(slots=1)], rules=rules).rent) == rented


def test_one_pass_rents_for_eight_purchases_at_most() -> None:
    jobs = [waiting(f"j{number}", elastic={"min": 1, "max": 1}) for number in range(12)]
    targets = decided(snapshot_of(jobs=jobs), [offer_of(slots=1)], rules=RentalRules(max_machines=50))
    assert len(targets.rent) == 8


def test_a_job_that_ends_or_is_paused_gets_nothing() -> None:
    for state in (JobState.PAUSED, JobState.CANCELLING):
        assert decided(snapshot_of(jobs=[replace(waiting(), state=state)]), [offer_of()]).rent == ()


def test_of_equally_good_buys_the_cheaper_machine_is_rented() -> None:
    """Both cost ten cents a slot, and the job takes one slot."""
    small, large = offer_of("small", 1), offer_of("large", 2)
    one_slot = waiting(elastic={"min": 1, "max": 1})
    (target,) = decided(snapshot_of(jobs=[one_slot]), [large, small]).rent
    assert target.offer.instance_type == "small"


def test_a_machine_of_the_wrong_kind_is_not_rented() -> None:
    gpu = waiting(resources={"devices": ["h100"]})
    assert decided(snapshot_of(jobs=[gpu]), [offer_of()]).rent == ()
    (target,) = decided(snapshot_of(jobs=[gpu]), [offer_of(), offer_of("p5", 1, device_kind="h100")]).rent
    assert target.offer.instance_type == "p5"


def test_a_place_in_backoff_does_not_hold_back_its_other_market_or_zone() -> None:
    place = RentalPlace("cloud", "here", "", "small", Market.SPOT)
    backoff = {place: LaunchBackoff(NOW + timedelta(seconds=30), "none left")}
    snapshot = snapshot_of(jobs=[waiting(market="mixed")])
    (target,) = decided(snapshot, [offer_of(spot_usd_per_h=0.15)], cooling=backoff).rent
    assert target.market is Market.ON_DEMAND
    zone = offer_of(zone="b", on_demand_usd_per_h=None, spot_usd_per_h=0.05)
    (target,) = decided(snapshot, [zone], cooling=backoff).rent
    assert target.offer.zone == "b"


def test_a_growth_says_by_how_much_the_job_is_faster() -> None:
    """From two slots to four: 380 samples a second instead of 195."""
    targets = decided(
        busy([machine_of("m1")], elastic={"min": 1, "max": 4}), [offer_of()], [machine_of("m1")]
    )
    assert [one.offer.instance_type for one in targets.rent] == ["small"]
    message = targets.rent[0].message
    assert "gpt (+9" in message
    assert "at a price of $0.20/h" in message


def test_several_machines_for_one_job_say_so() -> None:
    gang = waiting(elastic={"min": 4, "max": 4})
    targets = decided(snapshot_of(jobs=[gang]), [offer_of(slots=1)])
    assert {one.message for one in targets.rent} == {targets.rent[0].message}
    assert targets.rent[0].message.startswith("4 x on-demand small: worth $")
    assert "at a price of $0.40/h" in targets.rent[0].message


@pytest.mark.parametrize(
    ("low_s", "paid_s", "minimum_s", "goes"),
    [
        (119, 3600, 60, False),
        (120, 3600, 60, True),
        (9999, 59, 60, False),
        (9999, 60, 60, False),
        (9999, 61, 60, True),
        (-50, 3600, 60, False),
    ],
)
def test_an_idle_machine_is_kept_for_a_while_and_for_its_least_paid_time(
    low_s: float, paid_s: float, minimum_s: float, *, goes: bool
) -> None:
    machine = machine_of("m1", billed_from=NOW - timedelta(seconds=paid_s), min_billed_s=minimum_s)
    targets = decided(snapshot_of(), [], [machine], low_since=idle_since(low_s))
    assert bool(targets.release) is goes
    assert targets.low_since == {"m1": NOW - timedelta(seconds=max(low_s, 0))}, "no time in the future"


def test_a_machine_that_is_needed_again_begins_anew() -> None:
    machine = machine_of("m1")
    targets = decided(busy([machine]), [], [machine], low_since=idle_since(60))
    assert (targets.release, targets.low_since) == ((), {})


@pytest.mark.parametrize("price", [0.0, 0.2, 50.0])
def test_a_machine_without_work_is_released_whatever_it_costs(price: float) -> None:
    machine = machine_of("m1", usd_per_h=price)
    (release,) = decided(snapshot_of(), [], [machine], low_since=idle_since(600)).release
    assert release.reason is MachineReason.IDLE
    assert "for 600 s" in release.message


def test_a_machine_is_kept_below_its_price_within_the_hysteresis() -> None:
    """The only machine of a job is worth its price; at 1.4 times that of the offer it stays, at 4 times it goes."""
    for factor, stays in ((1.4, True), (40.0, False)):
        machine = machine_of("m1", usd_per_h=0.2 * factor)
        targets = decided(
            busy([machine], goal={"objective": "cost"}), [offer_of()], [machine], low_since=idle_since(600)
        )
        assert (targets.release == ()) is stays


def test_every_idle_machine_is_released_at_once() -> None:
    machines = [machine_of(f"m{number}", usd_per_h=0.1 * number) for number in (1, 2, 3)]
    low = dict.fromkeys(("m1", "m2", "m3"), LONG_AGO)
    targets = decided(snapshot_of(), [], machines, low_since=low)
    assert [one.machine_id for one in targets.release] == ["m3", "m2", "m1"], "the dearest first"


def test_a_machine_of_a_job_that_changes_is_not_judged() -> None:
    machine = machine_of("m1")
    changing = replace(runs(), state=JobState.RECOVERING)
    snapshot = snapshot_of([node_for(machine)], [changing], {"gpt": [("n-m1", 0)]}, {"gpt": GOOD_SCALING})
    targets = decided(snapshot, [], [machine], low_since=idle_since(600))
    assert (targets.release, targets.low_since) == ((), {})


def test_a_job_that_scales_worse_gets_no_more_than_one_that_scales_better() -> None:
    machine = machine_of("m1")
    rented = []
    for eight in (200.0, 300.0, 400.0, 730.0):
        rates = measured({1: 100.0, 2: 190.0, 4: min(190 + (eight - 190) / 2, 380.0), 8: eight})
        rented.append(len(decided(busy([machine], rates=rates), [offer_of()], [machine]).rent))
    assert rented == sorted(rented)
    assert rented[0] == 0
    assert rented[-1] > 0
