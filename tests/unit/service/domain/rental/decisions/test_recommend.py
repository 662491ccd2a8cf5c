"""Tests of plans by time and cost to completion: their ranking, the front, and the nearest limits if none is feasible."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.spec import JobSpec
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.decisions.recommend import (
    Need,
    PlanBadge,
    Recommendation,
    candidates,
    recommend,
    shapes_of,
)
from service.domain.rental.plans import Architecture, MachinePlan, PlanLimits
from service.domain.rental.speeds import Given, speeds_at
from service.usecases.jobs.planned import planned

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FEW = tuple(
    one for one in BUILT_IN if one.instance_type in {"g4dn.xlarge", "g5.xlarge", "g5.12xlarge", "c5.xlarge"}
)
JOB = planned(JobSpec(name="gpt-1", run="python train.py"), NOW)
NEED = Need(sizes=(1, 2, 4, 8), kinds=("t4", "a10g"), samples=1e7)
PLANS = candidates(NEED, FEW, PlanLimits())
SPEEDS = speeds_at(JOB, (), shapes_of(PLANS), Given("t4", 500.0))


def asked(
    need: Need, plans: list[MachinePlan] = PLANS, unlimited: list[MachinePlan] | None = None
) -> Recommendation:
    return recommend(need, plans, SPEEDS, unlimited=unlimited or [])


def test_every_architecture_and_size_is_weighed() -> None:
    assert {plan.architecture for plan in PLANS} == set(Architecture) - {Architecture.TIERING}
    assert {plan.slots for plan in PLANS} == {1, 2, 4, 8}
    assert {plan.device_kind for plan in PLANS} == {"t4", "a10g"}


@pytest.mark.parametrize(
    ("market", "architectures"),
    [
        ("on-demand", {Architecture.ALL_ON_DEMAND}),
        ("spot", {Architecture.ALL_SPOT}),
    ],
)
def test_a_job_that_wants_one_market_gets_it(market: str, architectures: set[Architecture]) -> None:
    plans = candidates(replace(NEED, market=market), FEW, PlanLimits())  # type: ignore[arg-type]
    assert {plan.architecture for plan in plans} == architectures


def test_machines_are_rented_whole() -> None:
    plans = candidates(replace(NEED, sizes=(3, 6)), FEW, PlanLimits())
    assert plans
    assert all(plan.slots in (3, 6) for plan in plans)


def test_money_per_hour_bounds_every_plan() -> None:
    plans = candidates(NEED, FEW, PlanLimits(max_usd_per_h=1.0))
    assert plans
    assert max(plan.usd_per_h for plan in plans) <= 1.0


@settings(max_examples=50, deadline=None)
@given(
    objective=st.sampled_from(["time", "cost", "balanced"]),
    samples=st.floats(1e4, 1e10),
    max_cost=st.none() | st.floats(0.01, 1e4),
    deadline_s=st.none() | st.floats(-10, 1e6),
    spread=st.floats(0, 1),
)
def test_what_is_ranked_is_feasible_and_by_the_goal(
    objective: str, samples: float, max_cost: float | None, deadline_s: float | None, spread: float
) -> None:
    need = replace(
        NEED,
        objective=objective,  # type: ignore[arg-type]
        samples=samples,
        spread=spread,
        max_cost_usd=max_cost,
        deadline_s=deadline_s,
    )
    found = asked(need)
    assert found.weighed == len(PLANS)
    assert bool(found.ranked) != bool(found.nearest)
    for one in found.ranked:
        assert max_cost is None or one.cost_usd <= max_cost
        assert deadline_s is None or one.time_s <= deadline_s
        assert one.time_p90_s >= one.time_s > 0
        assert one.cost_p90_usd >= one.cost_usd > 0
        beaten = [
            other
            for other in found.ranked
            if other.time_s <= one.time_s
            and other.cost_usd <= one.cost_usd
            and (other.time_s, other.cost_usd) != (one.time_s, one.cost_usd)
        ]
        assert not (beaten and PlanBadge.FRONT in one.marks)
    if found.ranked:
        first = found.ranked[0]
        assert PlanBadge.BEST in first.marks
        assert PlanBadge.FRONT in first.marks
        if objective == "time":
            assert first.time_s == min(one.time_s for one in found.ranked)
        if objective == "cost":
            assert first.cost_usd == min(one.cost_usd for one in found.ranked)
        if objective == "balanced":
            assert PlanBadge.KNEE in first.marks


def test_a_longer_deadline_never_costs_more() -> None:
    costs = []
    for hours in (1, 2, 4, 8, 16):
        found = asked(replace(NEED, objective="cost", deadline_s=hours * 3600.0))
        costs.append(found.ranked[0].cost_usd if found.ranked else math.inf)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < math.inf


def test_where_no_plan_is_in_time_for_the_money_either_limit_is_answered() -> None:
    fast = asked(replace(NEED, objective="time")).ranked[0]
    cheap = asked(replace(NEED, objective="cost")).ranked[0]
    need = replace(NEED, deadline_s=fast.time_s * 1.1, max_cost_usd=cheap.cost_usd * 1.1)
    found = asked(need)
    assert found.ranked == ()
    limits = {one.limit: one for one in found.nearest}
    assert set(limits) == {"max_cost_usd", "deadline_s"}
    budget, deadline = limits["max_cost_usd"].value, limits["deadline_s"].value
    assert asked(replace(need, max_cost_usd=budget)).ranked
    assert asked(replace(need, deadline_s=deadline)).ranked
    assert not asked(replace(need, max_cost_usd=budget * 0.999)).ranked
    assert not asked(replace(need, deadline_s=deadline * 0.999)).ranked


def test_where_nothing_is_fast_or_cheap_enough_both_extremes_are_named() -> None:
    found = asked(replace(NEED, deadline_s=1.0, max_cost_usd=1e-6))
    assert [one.limit for one in found.nearest] == ["deadline_s", "max_cost_usd"]
    assert "deadline" in found.nearest[0].rated.misses


def test_where_every_limit_is_too_tight_both_extremes_are_named_beyond_the_hour_as_well() -> None:
    found = asked(replace(NEED, deadline_s=1.0, max_cost_usd=1e-6), [], PLANS)
    assert [one.limit for one in found.nearest] == ["deadline_s", "max_cost_usd"]
    assert all("limit on dollars per hour" in one.reason for one in found.nearest)


def test_where_the_hour_is_too_dear_the_least_that_would_do_is_said() -> None:
    found = asked(NEED, [], PLANS)
    (nearest,) = found.nearest
    assert nearest.limit == "max_usd_per_h"
    assert nearest.value == pytest.approx(min(plan.usd_per_h for plan in PLANS))


def test_a_plan_says_how_it_saves_and_what_losses_cost() -> None:
    (one,) = [
        each
        for each in asked(NEED).ranked
        if each.plan.architecture is Architecture.SINGLE_ANCHOR
        and each.plan.slots == 8
        and each.plan.device_kind == "t4"
    ]
    assert one.reasons[0] == "7 of 8 on spot: 61% off the on-demand price"
    assert "an anchor keeps a live replica" in one.reasons[1]


def test_of_a_type_in_two_places_the_cheaper_one_is_taken() -> None:
    near = FEW[0]
    far = replace(near, region="elsewhere", on_demand_usd_per_h=0.1, spot_usd_per_h=None)
    plans = candidates(replace(NEED, market="on-demand"), [near, far], PlanLimits())
    assert {plan.groups[0].offer.region for plan in plans if plan.device_kind == near.device_kind} >= {
        "elsewhere"
    }
