"""Tests of the whole decision: jobs on both markets first, then all others by what machines are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.registry import policy
from service.domain.rental.decisions.renting import decide_renting
from service.domain.rental.machines import MachineReason
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalRules, RentalTargets, RentalTerms
from tests.unit.service.builders import NOW
from tests.unit.service.domain.rental.decisions.test_autoscale import waiting
from tests.unit.service.domain.rental.spot.situations import (
    ON_DEMAND,
    SPOT,
    closed,
    offer,
    rented,
    situation,
    trains,
)


def decided(
    snapshot: Snapshot, fleet: Fleet, offers: Sequence[Offer] = (offer(),), **rest: Any
) -> RentalTargets:
    return decide_renting(
        snapshot,
        fleet,
        offers,
        RentalTerms(
            **{
                "rules": RentalRules(max_machines=100, idle_s=0.0),
                "policy": policy("goodput"),
                "solve": partial(solve, gap=0.0),
                **rest,
            }
        ),
    )


def test_a_covered_job_gets_the_machines_of_its_choice_and_no_others() -> None:
    """It is behind, and spot launches are suspended: two on demand, although its objective is `cost`."""
    one = situation([trains()], rented(SPOT, 1, 2, billed_from=NOW), {"gpt": ["s1", "s2"]})
    found = decided(*one, cooling=closed())
    assert [(each.market, each.usd_per_h) for each in found.rent] == [(ON_DEMAND, 1.0)] * 2
    assert "gpt" in found.rent[0].message
    limit = found.market_limits["gpt"]
    assert (limit.on_demand, limit.spot, limit.phase) == (2, 2, "behind")
    assert found.release == ()


def test_what_a_covered_job_no_longer_needs_is_released() -> None:
    long_ago = NOW - timedelta(hours=2)
    machines = [
        *rented(SPOT, 1, 2, 3, 4, billed_from=long_ago),
        *rented(ON_DEMAND, 1, 2, billed_from=long_ago),
    ]
    one = situation([trains(samples=3_000_000)], machines, {"gpt": ["s1", "s2", "s3", "s4"]})
    found = decided(*one, cooling=closed())
    assert {(each.machine_id, each.reason) for each in found.release} == {
        ("d1", MachineReason.IDLE),
        ("d2", MachineReason.IDLE),
    }


def test_another_job_is_rented_for_beside_it() -> None:
    other = waiting("other", market="on-demand", elastic={"min": 1, "max": 1})
    snapshot, fleet = situation([trains(), other], rented(SPOT, 1), {"gpt": ["s1"]})
    snapshot = replace(snapshot, measurements={"gpt": snapshot.measurements["gpt"]})
    found = decided(snapshot, fleet, rules=RentalRules(max_machines=17))
    assert len(found.rent) == 16
    assert [one.market for one in found.rent].count(ON_DEMAND) == 1
    assert set(found.market_limits) == {"gpt"}


def test_a_machine_that_was_leased_for_a_job_stays_until_the_job_has_ended() -> None:
    long_ago = NOW - timedelta(hours=2)
    machines = rented(SPOT, 1, billed_from=long_ago, job_id="gpt")
    snapshot, fleet = situation([trains(goal={"objective": "cost"}, market="on-demand")], machines, {})
    assert decided(snapshot, fleet, ()).release == ()
    ended = replace(snapshot, jobs={}, measurements={})
    (one,) = decided(ended, fleet, ()).release
    assert one.machine_id == "s1"


def test_the_reason_why_a_covered_job_gets_no_more_is_told() -> None:
    one = situation([trains()], rented(SPOT, 1, 2), {"gpt": ["s1", "s2"]})
    assert "limit of 2 machines" in decided(*one, rules=RentalRules(max_machines=2)).held_back
