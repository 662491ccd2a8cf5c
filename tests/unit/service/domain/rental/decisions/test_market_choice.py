"""Tests of the choice of machines for jobs that use both markets."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Cap, Limit, Tenant
from service.domain.rental.decisions.market_choice import machine_types
from service.domain.rental.machines import MachineState
from service.domain.rental.rental_targets import RentalRules
from service.domain.rental.spot.uniform_progress import SpotPhase
from tests.unit.service.builders import NOW, node_of
from tests.unit.service.domain.rental.spot.situations import (
    HOUR,
    ON_DEMAND,
    SPOT,
    chosen,
    closed,
    markets,
    offer,
    only,
    rented,
    situation,
    trains,
)


def test_a_job_on_time_rents_spot_machines_as_far_as_they_pay() -> None:
    """It requests 4 of 1 to 16. Its speed is linear, so all 16 are worth 30 % of the price."""
    found = only(
        *situation([trains(samples=1_440_000)], rented(SPOT, 1, 2, 3, 4), {"gpt": ["s1", "s2", "s3", "s4"]})
    )
    assert (found.holding.on_demand, found.holding.spot, found.holding.phase) == (0, 16, SpotPhase.PRESENT)
    assert markets(found) == (0, 12)
    assert found.kept == {"s1", "s2", "s3", "s4"}
    assert found.limit.slots == {"cpu": 0, "cpu (spot)": 16}


def test_a_job_behind_rents_on_demand_in_place_of_missing_spot_machines() -> None:
    """An hour has passed and nothing is done. Spot launches are suspended, so two of four are missing."""
    one = situation([trains()], rented(SPOT, 1, 2), {"gpt": ["s1", "s2"]})
    found = only(*one, cooling=closed())
    assert (found.holding.on_demand, found.holding.spot, found.holding.phase) == (2, 2, SpotPhase.BEHIND)
    assert markets(found) == (2, 0)
    assert found.limit.slots == {"cpu": 2, "cpu (spot)": 2}


def test_a_job_ahead_waits_for_spot_machines() -> None:
    found = only(*situation([trains(samples=5_000_000)], rented(SPOT, 1), {"gpt": ["s1"]}), cooling=closed())
    assert (found.holding.on_demand, found.holding.spot, found.holding.phase) == (0, 1, SpotPhase.AHEAD)
    assert markets(found) == (0, 0)


def test_machines_on_demand_stay_until_their_successors_can_train() -> None:
    """Four spot machines are starting: they do not count. Once they have joined, nothing is kept on demand."""
    held = {"gpt": ["d1", "d2", "d3", "d4"]}
    firm = rented(ON_DEMAND, 1, 2, 3, 4)
    starting = situation([trains()], [*firm, *rented(SPOT, 1, 2, 3, 4, state=MachineState.LAUNCHING)], held)
    found = only(*starting, cooling=closed())
    assert (found.holding.on_demand, found.holding.phase) == (4, SpotPhase.BEHIND)
    assert found.kept == {"d1", "d2", "d3", "d4", "s1", "s2", "s3", "s4"}
    ready = situation([trains()], [*firm, *rented(SPOT, 1, 2, 3, 4)], held)
    found = only(*ready, cooling=closed())
    assert (found.holding.on_demand, found.holding.phase) == (0, SpotPhase.PRESENT)
    assert found.kept == {"s1", "s2", "s3", "s4"}
    assert found.limit.slots["cpu"] == 0


def test_a_deadline_moves_a_job_to_demand_while_its_spot_machines_go_on() -> None:
    """Three and a half hours are left for the four hours of its work."""
    one = situation([trains(deadline_h=3.5)], rented(SPOT, 1, 2, 3, 4), {"gpt": ["s1", "s2", "s3", "s4"]})
    found = only(*one)
    assert (found.holding.on_demand, found.holding.spot, found.holding.phase) == (4, 4, SpotPhase.PRESSED)
    assert markets(found) == (4, 0)
    later = situation(
        [trains(deadline_h=3.5)], [*rented(SPOT, 1, 2, 3, 4), *rented(ON_DEMAND, 1, 2, 3, 4)], {"gpt": ["s1"]}
    )
    found = only(*later)
    assert found.holding.spot == 0
    assert found.kept == {"d1", "d2", "d3", "d4"}


def test_a_large_job_keeps_an_anchor() -> None:
    """At full size 8, an anchor costs 0.7 / 8 of the price on demand: less than a tenth."""
    found = only(
        *situation([trains(elastic={"min": 4, "max": 16}, hours=2)], rented(SPOT, 1), {"gpt": ["s1"]})
    )
    assert found.holding.on_demand == 1
    assert markets(found) == (1, 14)


@pytest.mark.parametrize(
    "fields",
    [
        {"market": "spot"},
        {"market": "on-demand"},
        {"goal": {"objective": "time"}},
        {"goal": {"objective": "cost", "search": "partial"}},
        {"elastic": {"min": 1, "max": 16, "resize": "restart"}},
        {"elastic": {"min": 4, "max": 4}},
        {"resources": {"devices": ["a100"]}},
    ],
    ids=str,
)
def test_other_jobs_follow_the_general_rule(fields: dict[str, Any]) -> None:
    assert chosen(*situation([trains(**fields)])) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"pinned_size": 4},
        {"pause_requested": True},
        {"state": JobState.PAUSED},
        {"state": JobState.CANCELLING},
        {"live": False},
    ],
    ids=str,
)
def test_a_job_that_cannot_use_what_is_rented_is_not_covered(change: dict[str, Any]) -> None:
    assert chosen(*situation([replace(trains(), **change)])) == ()


def test_without_a_measurement_or_an_end_nothing_is_chosen() -> None:
    snapshot, fleet = situation([trains()])
    assert len(chosen(snapshot, fleet)) == 1
    assert chosen(replace(snapshot, measurements={}), fleet) == ()
    job = snapshot.jobs["gpt"]
    endless = replace(job, progress=job.progress.model_copy(update={"total_samples": None}))
    assert chosen(replace(snapshot, jobs={"gpt": endless}), fleet) == ()
    with_class = replace(snapshot, jobs={"gpt": endless}, ended_samples={"default/gpt": (1e6, 1e6)})
    assert len(chosen(with_class, fleet)) == 1, "ended jobs of its class show the work"


def test_a_type_is_needed_that_is_sold_on_both_markets() -> None:
    one = situation([trains()])
    assert chosen(*one, [offer(on_demand_usd_per_h=None)]) == ()
    assert chosen(*one, [offer(spot_usd_per_h=None)]) == ()
    assert chosen(*one, [offer(on_demand_usd_per_h=None, zone="a"), offer(spot_usd_per_h=None, zone="b")])


def test_the_cheapest_type_is_chosen_and_then_kept() -> None:
    offers = [offer(), offer("other", spot_usd_per_h=0.2)]
    found = only(*situation([trains()]), offers)
    assert {one.offer.instance_type for one in found.rent} == {"other"}
    found = only(*situation([trains()], rented(SPOT, 1), {"gpt": ["s1"]}), offers)
    assert {one.offer.instance_type for one in found.rent} == {"small"}


def test_a_place_is_chosen_by_its_price_and_by_the_starts_that_interruptions_waste() -> None:
    """At 2 an hour, a tenth of each hour is spent on starts of 180 s: $0.30 is then worth $0.33."""
    calm, rough = offer(zone="b", spot_usd_per_h=0.32), offer(zone="a", hazard_per_h=2.0)
    (one,) = machine_types([rough, calm])
    assert [each.offer.zone for each in one.spot] == ["b", "a"]
    (one,) = machine_types([replace(rough, hazard_per_h=1.0), calm])
    assert [each.offer.zone for each in one.spot] == ["a", "b"]
    assert one.spot_price == pytest.approx(0.3)


def test_a_suspended_place_is_passed_over() -> None:
    offers = [offer(zone="a"), offer(zone="b", spot_usd_per_h=0.4)]
    found = only(*situation([trains()]), offers, cooling=closed(zone="a"))
    assert {one.offer.zone for one in found.rent} == {"b"}


def test_the_limits_on_all_machines_bound_what_is_rented() -> None:
    one = situation([trains()], rented(SPOT, 1, 2), {"gpt": ["s1", "s2"]})
    found = only(*one, rules=RentalRules(max_machines=3))
    assert (markets(found), found.holding.phase) == ((1, 0), SpotPhase.BEHIND), "two are missing"
    assert "limit of 3 machines" in found.held_back
    found = only(*one, rules=RentalRules(max_machines=100, max_usd_per_h=1.3))
    assert markets(found) == (0, 2)
    snapshot, fleet = one
    capped = replace(snapshot, caps=(Cap("all", None, 0.75),))
    assert markets(only(capped, fleet)) == (0, 0)
    assert only(replace(snapshot, caps=(Cap("all", None, 0.75),)), fleet).held_back


def test_a_job_whose_money_does_not_cover_demand_follows_the_general_rule() -> None:
    """Four hours of four machines at $1 cost $16."""
    snapshot, fleet = situation([trains(age_s=0)])
    assert chosen(replace(snapshot, limits={"gpt": Limit(40.0)}), fleet)
    assert chosen(replace(snapshot, limits={"gpt": Limit(15.0)}), fleet) == ()
    assert chosen(replace(snapshot, caps=(Cap("own", "default", 4.0),)), fleet)
    assert chosen(replace(snapshot, caps=(Cap("own", "default", 3.9),)), fleet) == ()
    assert chosen(replace(snapshot, caps=(Cap("other", "x", 0.1),)), fleet)


def test_a_quota_bounds_the_sizes() -> None:
    snapshot, fleet = situation([trains()])
    six = replace(snapshot, projects={"default": Tenant(ProjectQuota(max_slots=6))})
    assert markets(only(six, fleet)) == (0, 6)
    assert chosen(replace(snapshot, projects={"default": Tenant(ProjectQuota(max_slots=0))}), fleet) == ()


def test_slots_of_own_nodes_count_and_are_never_limited() -> None:
    own = [node_of("own", 1), node_of("gone", 1, state=NodeState.LOST)]
    snapshot, fleet = situation([trains()], [], {"gpt": ["own"]}, own)
    found = only(snapshot, fleet, cooling=closed())
    assert found.holding.on_demand == 3, "one of four is there already"
    assert found.limit.slots == {"cpu": 4, "cpu (spot)": 0}
    wide = [node_of("own", 4)]
    snapshot, fleet = situation([trains()], [], {"gpt": ["own"]}, wide)
    held = {**snapshot.held, **{replace(key, slot=slot): "gpt" for key in snapshot.held for slot in range(4)}}
    assert chosen(replace(snapshot, held=held), fleet) == (), "its own nodes are its full size"


def test_machines_are_shared_out_once_pressed_jobs_first() -> None:
    jobs = [trains("old", age_s=2 * HOUR, samples=5_000_000), trains("late", deadline_h=3.5)]
    snapshot, fleet = situation(jobs, rented(ON_DEMAND, 1, 2), {})
    late, old = chosen(snapshot, fleet)
    assert (late.job.id, late.kept) == ("late", {"d1", "d2"})
    assert markets(late) == (2, 0)
    assert old.kept == set()


def test_a_machine_that_another_job_holds_or_a_user_leased_is_not_taken() -> None:
    machines = [*rented(SPOT, 1, 2), *rented(SPOT, 3, job_id="other")]
    snapshot, fleet = situation(
        [trains(), trains("other", goal={"objective": "time"})], machines, {"gpt": ["s1"], "other": ["s2"]}
    )
    assert only(snapshot, fleet).kept == {"s1"}
    leased = replace(fleet, machines=[replace(one, job_id="gpt") for one in machines])
    assert chosen(snapshot, leased) == (), "its user has chosen its machines"


@settings(max_examples=40)
@given(
    age_h=st.floats(0, 20),
    done=st.floats(0, 0.99),
    deadline_h=st.one_of(st.none(), st.floats(-1, 30)),
    spot=st.integers(0, 8),
    firm=st.integers(0, 6),
    suspended=st.booleans(),
    most=st.integers(0, 30),
)
def test_what_is_chosen_is_within_its_bounds(
    age_h: float,
    done: float,
    deadline_h: float | None,
    spot: int,
    firm: int,
    suspended: bool,
    most: int,
) -> None:
    job = trains(age_s=age_h * HOUR, samples=int(done * 4 * HOUR * 400), deadline_h=deadline_h)
    machines = [*rented(SPOT, *range(spot)), *rented(ON_DEMAND, *range(firm))]
    snapshot, fleet = situation([job], machines, {"gpt": ["s0"]} if spot else {})
    found = only(snapshot, fleet, cooling=closed() if suspended else {}, rules=RentalRules(max_machines=most))
    assert found == only(
        snapshot, fleet, cooling=closed() if suspended else {}, rules=RentalRules(max_machines=most)
    )
    assert found.kept <= {one.id for one in machines}
    assert len(found.rent) <= max(most - len(machines), 0)
    on_demand, on_spot = markets(found)
    assert on_demand + sum(one.startswith("d") for one in found.kept) <= found.holding.on_demand <= 4
    assert on_spot + sum(one.startswith("s") for one in found.kept) <= found.holding.spot <= 16
    assert on_spot == 0 or not suspended
    assert found.limit.slots["cpu"] == found.holding.on_demand
    pressed = deadline_h is not None and deadline_h * HOUR <= (1 - done) * 4 * HOUR
    assert not pressed or found.holding.phase is SpotPhase.PRESSED


def test_a_deadline_is_counted_from_now_whenever_the_job_began() -> None:
    for age_s in (0, 50 * HOUR):
        calm = only(*situation([trains(age_s=age_s, deadline_h=40)]))
        assert calm.holding.phase is not SpotPhase.PRESSED
        late = only(*situation([trains(age_s=age_s, deadline_h=4.0)]))
        assert late.holding.phase is SpotPhase.PRESSED
    assert math.isinf(trains().deadline_left_s(NOW))
    assert trains(deadline_h=1).deadline_left_s(NOW + timedelta(hours=1)) == 0
