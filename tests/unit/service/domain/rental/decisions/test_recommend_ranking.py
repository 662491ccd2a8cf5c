"""Tests of the ranking of plans, and of the limits that would be enough, on plans with round figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from service.domain.rental.decisions.recommend import (
    START_S,
    Need,
    PlanBadge,
    Rated,
    candidates,
    rate,
    recommend,
    shape_of,
    shapes_of,
)
from service.domain.rental.plans import Architecture, MachineGroup, MachinePlan, PlanLimits, Role
from service.domain.rental.speeds import Basis, ExpectedSpeed, Shape
from service.domain.rental.spot.losses import Costs
from tests.unit.service.domain.rental.examples import (
    GIB,
    ON_DEMAND,
    SPOT,
    group,
    host_offer,
    offer_of,
    plan_of,
)

HOUR_S = 3600.0
WORK = 36_000.0
"""Samples: an hour at ten samples a second."""


def on_demand(name: str, machines: int, usd_per_h: float) -> MachinePlan:
    return plan_of(
        group(machines, ON_DEMAND, name=name, on_demand_usd_per_h=usd_per_h),
        architecture=Architecture.ALL_ON_DEMAND,
    )


SLOW, MIDDLE, FAST = on_demand("slow", 1, 1.0), on_demand("middle", 2, 0.75), on_demand("fast", 4, 2.0)
"""One, two and four machines, at $1, $1.50 and $8 an hour."""
SPEEDS = {
    Shape("t4", 1, 1): ExpectedSpeed(10.0, 8.0, Basis.MEASURED),
    Shape("t4", 2, 2): ExpectedSpeed(20.0, 16.0, Basis.MEASURED),
    Shape("t4", 4, 4): ExpectedSpeed(40.0, 32.0, Basis.MEASURED),
}
PLANS = [SLOW, MIDDLE, FAST]


def need_of(**fields: Any) -> Need:
    return Need(**{"sizes": (1, 2, 4), "samples": WORK, "market": "on-demand", **fields})


def names(found: tuple[Rated, ...]) -> list[str]:
    return [one.plan.groups[0].offer.instance_type for one in found]


def test_time_and_cost_of_plans_without_losses_by_hand() -> None:
    """A plan takes its work by its speed; it is paid for from the launch on."""
    slow, middle, fast = rate(need_of(), PLANS, SPEEDS)
    assert [one.time_s for one in (slow, middle, fast)] == pytest.approx(
        [START_S + 3600, START_S + 1800, START_S + 900]
    )
    assert [one.cost_usd for one in (slow, middle, fast)] == pytest.approx(
        [3780 / HOUR_S * 1.0, 1980 / HOUR_S * 1.5, 1080 / HOUR_S * 8.0]
    )
    assert slow.time_p90_s == pytest.approx(START_S + WORK / 8.0)
    assert slow.misses == ()


@pytest.mark.parametrize(
    ("objective", "order"),
    [
        ("time", ["fast", "middle", "slow"]),
        ("cost", ["middle", "slow", "fast"]),
        ("balanced", ["middle", "fast", "slow"]),
    ],
)
def test_plans_are_ranked_by_the_goal(objective: Any, order: list[str]) -> None:
    found = recommend(need_of(objective=objective), PLANS, SPEEDS)
    assert names(found.ranked) == order
    assert found.ranked[0].marks[0] is PlanBadge.BEST
    assert (found.weighed, found.nearest) == (3, ())


def test_badges_name_the_front_and_its_ends() -> None:
    """The slow plan is beaten in both by the middle one, so it is not on the front."""
    found = recommend(need_of(objective="cost"), PLANS, SPEEDS)
    badges = dict(zip(names(found.ranked), (set(one.marks) for one in found.ranked), strict=True))
    assert badges["slow"] == set()
    assert badges["fast"] == {PlanBadge.FRONT, PlanBadge.FASTEST}
    assert badges["middle"] == {PlanBadge.BEST, PlanBadge.FRONT, PlanBadge.KNEE, PlanBadge.CHEAPEST}


def test_of_equally_fast_plans_the_cheaper_one_is_first() -> None:
    twins = [on_demand("dear", 1, 3.0), on_demand("cheap", 1, 2.0)]
    assert names(recommend(need_of(objective="time"), twins, SPEEDS).ranked) == ["cheap", "dear"]
    assert names(recommend(need_of(objective="cost"), twins, SPEEDS).ranked) == ["cheap", "dear"]


def test_a_plan_that_cannot_run_is_not_evaluated() -> None:
    speeds = {**SPEEDS, Shape("t4", 4, 4): ExpectedSpeed(0.0, 0.0, Basis.MEASURED)}
    found = recommend(need_of(), PLANS, speeds)
    assert (found.weighed, names(found.ranked)) == (2, ["middle", "slow"])
    assert recommend(need_of(), [FAST], speeds).weighed == 0


@pytest.mark.parametrize(
    ("limits", "feasible"),
    [
        ({}, ["slow", "middle", "fast"]),
        ({"deadline_s": 3780.1}, ["slow", "middle", "fast"]),
        ({"deadline_s": 3779.0}, ["middle", "fast"]),
        ({"deadline_s": 1079.0}, []),
        ({"max_cost_usd": 1.051}, ["slow", "middle"]),
        ({"max_cost_usd": 1.049}, ["middle"]),
        ({"max_cost_usd": 0.8}, []),
        ({"deadline_s": 2000.0, "max_cost_usd": 1.0}, ["middle"]),
    ],
)
def test_limits_on_time_and_cost(limits: dict[str, float], feasible: list[str]) -> None:
    found = recommend(need_of(**limits), PLANS, SPEEDS)
    assert set(names(found.ranked)) == set(feasible)
    assert bool(found.nearest) is not bool(feasible)


def test_a_plan_names_each_limit_that_it_breaks() -> None:
    (one,) = rate(need_of(deadline_s=3000.0, max_cost_usd=1.0), [SLOW], SPEEDS)
    assert one.misses == ("deadline", "max_cost_usd")
    assert "ends 780 s after the deadline" in one.reasons
    assert "costs $0.050 more than allowed" in one.reasons


@pytest.mark.parametrize(
    ("limits", "warnings"),
    [
        ({"deadline_s": 4000.0}, 1),
        ({"max_cost_usd": 1.1}, 1),
        ({"deadline_s": 4000.0, "max_cost_usd": 1.1}, 2),
        ({"deadline_s": 4700.0, "max_cost_usd": 1.4}, 0),
    ],
)
def test_a_limit_within_the_ninetieth_percentile_is_a_warning(
    limits: dict[str, float], warnings: int
) -> None:
    """The slow plan takes 3,780 s and $1.05 at the median, 4,680 s and $1.30 at the ninetieth percentile."""
    (one,) = rate(need_of(**limits), [SLOW], SPEEDS)
    assert one.misses == ()
    assert sum("probability of 10 %" in reason for reason in one.reasons) == warnings


def test_the_smallest_sufficient_limits() -> None:
    """In 30 minutes only the fast plan ends, for $2.40; for a dollar only the middle one runs, in 1,980 s."""
    found = recommend(need_of(deadline_s=1800.0, max_cost_usd=1.0), PLANS, SPEEDS)
    budget, deadline = found.nearest
    assert (budget.limit, budget.value, names((budget.rated,))) == (
        "max_cost_usd",
        pytest.approx(2.4),
        ["fast"],
    )
    assert (deadline.limit, deadline.value, names((deadline.rated,))) == (
        "deadline_s",
        pytest.approx(1980),
        ["middle"],
    )


def test_a_limit_that_was_not_set_is_not_answered() -> None:
    (only,) = recommend(need_of(deadline_s=600.0), PLANS, SPEEDS).nearest
    assert (only.limit, only.value) == ("deadline_s", pytest.approx(1080))
    (only,) = recommend(need_of(max_cost_usd=0.5), PLANS, SPEEDS).nearest
    assert (only.limit, only.value) == ("max_cost_usd", pytest.approx(0.825))


def test_the_smallest_sufficient_dollars_an_hour() -> None:
    found = recommend(need_of(deadline_s=2000.0), [SLOW], SPEEDS, unlimited=[*PLANS])
    assert [one.limit for one in found.nearest] == ["deadline_s", "max_usd_per_h"]
    assert found.nearest[1].value == pytest.approx(1.5)


def test_without_any_plan_nothing_is_answered() -> None:
    found = recommend(need_of(), [], SPEEDS)
    assert (found.ranked, found.nearest, found.weighed) == ((), (), 0)


@pytest.mark.parametrize(
    ("anchors", "kept"),
    [(0, 1 / 1.05), (1, 1 / 1.05 + 0.05 / 1.05 * 0.25), (3, 1 / 1.05 + 0.05 / 1.05 * 0.75)],
)
def test_while_spot_machines_are_away_the_anchors_train_on(anchors: int, kept: float) -> None:
    """With 0.1 losses an hour, a machine is present 1 / (1 + 0.1 * 0.5) of the time. A resize costs nothing here."""
    groups = [group(4 - anchors, SPOT, hazard_per_h=0.1)]
    if anchors:
        groups.append(group(anchors, ON_DEMAND, Role.ANCHOR, hazard_per_h=0.1))
    free = Costs(checkpoint_s=0.0, restart_s=0.0, resize_s=0.0)
    (one,) = rate(need_of(costs=free), [plan_of(*groups)], SPEEDS)
    share = one.exposure.share if not anchors else 1.0
    losses = 1 + one.exposure.losses_per_h / HOUR_S * one.exposure.loss_s
    assert one.time_s == pytest.approx(START_S + WORK / (40 * kept * share) * losses, rel=1e-6)


def test_the_shape_of_a_plan_is_its_training_devices() -> None:
    mixed = plan_of(
        group(2, SPOT, devices=4),
        MachineGroup(Role.REMOTE, host_offer(), ON_DEMAND, 3),
    )
    assert shape_of(mixed) == Shape("t4", 8, 2)
    assert shapes_of([SLOW, mixed, SLOW]) == [Shape("t4", 1, 1), Shape("t4", 8, 2)]


def test_a_saving_is_relative_to_the_same_machines_on_demand() -> None:
    """Three machines at $0.25 and one at $1 instead of four at $1; a type without that price saves nothing."""
    plan = plan_of(group(3, SPOT), group(1, ON_DEMAND, Role.ANCHOR))
    (one,) = rate(need_of(), [plan], SPEEDS)
    assert one.reasons[0] == "3 of 4 on spot: 56% off the on-demand price"
    (other,) = rate(need_of(), [plan_of(group(4, SPOT, on_demand_usd_per_h=None))], SPEEDS)
    assert other.reasons[0] == "4 of 4 on spot: 0% off the on-demand price"
    free = group(4, SPOT, on_demand_usd_per_h=0.0, spot_usd_per_h=0.0)
    assert rate(need_of(), [plan_of(free)], SPEEDS)[0].reasons[0] == "4 of 4 on spot"
    assert rate(need_of(), [FAST], SPEEDS)[0].reasons[0] == "4 on demand"


@pytest.mark.parametrize(
    ("sizes", "devices", "slots"),
    [
        ((1, 2, 4), 1, [1, 2, 4]),
        ((1, 2, 4), 2, [2, 4]),
        ((1, 2, 4), 8, []),
        ((3,), 2, []),
        (tuple(range(1, 1025)), 1, 10),
    ],
)
def test_sizes_that_are_whole_machines_are_tried_ten_at_most(
    sizes: tuple[int, ...], devices: int, slots: list[int] | int
) -> None:
    plans = candidates(need_of(sizes=sizes), [offer_of(devices=devices)], PlanLimits())
    found = [plan.slots for plan in plans]
    if isinstance(slots, list):
        assert found == slots
        return
    assert len(found) == slots
    assert (found[0], found[-1]) == (1, 1024), "evenly in the logarithm, with both ends"
    ratios = [larger / smaller for smaller, larger in pairwise(found[3:])]
    assert max(ratios) / min(ratios) < 1.2


def test_the_same_plan_of_two_architectures_is_evaluated_once() -> None:
    plans = candidates(need_of(market="mixed", sizes=(2,)), [offer_of()], PlanLimits())
    assert [plan.architecture for plan in plans] == [
        Architecture.SINGLE_ANCHOR,
        Architecture.ALL_SPOT,
        Architecture.ALL_ON_DEMAND,
    ]


@pytest.mark.parametrize(
    ("fields", "limits", "found"),
    [
        ({"kinds": ("t4",)}, {}, 1),
        ({"kinds": ("h100",)}, {}, 0),
        ({"kinds": ()}, {}, 1),
        ({}, {"max_usd_per_h": 1.0}, 1),
        ({}, {"max_usd_per_h": 0.99}, 0),
        ({}, {"device_bytes": 16.0 * GIB}, 1),
        ({}, {"device_bytes": 17.0 * GIB}, 0),
        ({}, {"vcpus": {"g/on-demand": 4}}, 1),
        ({}, {"vcpus": {"g/on-demand": 3}}, 0),
    ],
)
def test_kinds_and_limits_select_plans(fields: dict[str, Any], limits: dict[str, Any], found: int) -> None:
    assert len(candidates(need_of(sizes=(1,), **fields), [offer_of()], PlanLimits(**limits))) == found


def test_each_market_is_rented_where_it_is_cheapest() -> None:
    here = offer_of(region="here", on_demand_usd_per_h=1.0, spot_usd_per_h=0.5)
    there = offer_of(region="there", on_demand_usd_per_h=2.0, spot_usd_per_h=0.4)
    for market, region in (("on-demand", "here"), ("spot", "there")):
        plans = candidates(need_of(market=market, sizes=(1,)), [here, there], PlanLimits())
        assert min(plans, key=lambda plan: plan.usd_per_h).groups[0].offer.region == region
    third = replace(here, region="dear", on_demand_usd_per_h=9.0, spot_usd_per_h=9.0)
    regions = {
        plan.groups[0].offer.region
        for plan in candidates(need_of(market="mixed", sizes=(1,)), [here, there, third], PlanLimits())
    }
    assert regions == {"here", "there"}


def test_a_plan_with_more_anchors_than_one_is_not_a_single_anchor() -> None:
    """The quota allows two machines on spot, so that three of five are anchors."""
    limits = PlanLimits(vcpus={"g/spot": 8})
    plans = candidates(need_of(market="mixed", sizes=(5,)), [offer_of()], limits)
    assert [(plan.architecture, plan.anchored_slots) for plan in plans] == [
        (Architecture.ANCHORED, 3),
        (Architecture.ALL_ON_DEMAND, 5),
    ]
