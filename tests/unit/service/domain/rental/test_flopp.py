"""Tests of DeepVM's published plans, and of the shape of its rating."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.markets import Market
from service.domain.rental import flopp
from service.domain.rental.architectures import best
from service.domain.rental.catalogue import BUILT_IN, DEEPVM
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachinePlan, PlanLimits, WorkerChoice


def machines(plan: MachinePlan | None) -> list[tuple[int, str, Market]]:
    assert plan is not None
    return [(one.machines, one.offer.instance_type, one.market) for one in plan.groups]


@pytest.mark.parametrize("offers", [DEEPVM, BUILT_IN], ids=["its own table", "the whole catalogue"])
def test_three_dollars_an_hour_buy_the_published_plans(offers: tuple[Offer, ...]) -> None:
    first, second, third = flopp.plans(offers, max_usd_per_h=3.0)
    assert first[1].architecture is Architecture.TIERING
    assert machines(first[1]) == [
        (17, "g4dn.xlarge", Market.SPOT),
        (1, "c5.xlarge", Market.ON_DEMAND),
    ]
    assert [round(plan.usd_per_h, 4) for _, plan in (first, second, third)] == [2.8526, 2.8746, 2.8986]


def test_a_quota_may_be_used_up() -> None:
    """The released code's ranges stop one machine short."""
    quotas = {**flopp.QUOTAS, "g/spot": 20}
    (_, plan), *_ = flopp.plans(DEEPVM, max_usd_per_h=3.0, quotas=quotas)
    assert plan.spot_machines == 5


def test_too_little_money_buys_nothing() -> None:
    assert flopp.plans(DEEPVM, max_usd_per_h=0.1) == []


def test_a_checkpoint_needs_remote_memory() -> None:
    """A buffered checkpoint of 10 GiB does not fit in one c5.xlarge of 8; an m6i.xlarge has 16."""
    (_, plan), *_ = flopp.plans(DEEPVM, max_usd_per_h=3.0, checkpoint_bytes=20 * 2**30)
    assert plan.groups[1].offer.instance_type == "m6i.xlarge"
    assert plan.groups[1].machines == 1


@pytest.mark.parametrize("rating", flopp.RATINGS.values(), ids=flopp.RATINGS)
def test_scaling_is_whole_up_to_where_the_curve_turns_and_less_beyond(rating: flopp.Rating) -> None:
    turn = int(rating.b)
    assert rating.scaling(turn) == 1.0
    assert rating.scaling(turn + 8) < 1.0
    assert rating.speedup(rating.b) == pytest.approx(rating.tangent(rating.b))


def test_types_that_were_never_rated_are_in_no_plan() -> None:
    plans = flopp.plans(BUILT_IN, max_usd_per_h=50.0)
    assert plans
    assert {plan.groups[0].offer.instance_type for _, plan in plans} <= set(flopp.RATINGS)


T4 = flopp.RATINGS["g4dn.xlarge"]
G4DN = next(one for one in DEEPVM if one.instance_type == "g4dn.xlarge")


def test_flop_per_dollar_by_hand() -> None:
    """377 / 0.1578 * 3600, in the unit of the paper's table."""
    assert flopp.flop_per_usd(G4DN, T4) == pytest.approx(8_600_760.456, rel=1e-9)
    assert flopp.flop_per_usd(replace(G4DN, spot_usd_per_h=None), T4) == 0.0
    assert flopp.flop_per_usd(replace(G4DN, spot_usd_per_h=0.0), T4) == 0.0


def test_the_curve_of_a_t4_by_hand() -> None:
    """At b the exponential is 1, so S = c / 2; ten machines later it is exp(-a * 10)."""
    b = T4.b
    assert T4.speedup(b) == pytest.approx(6.176666667 / 2)
    assert T4.speedup(b + 10) == pytest.approx(6.176666667 / (1 + math.exp(-1.338806402)))
    assert T4.tangent(b + 10) == pytest.approx(6.176666667 * 0.1338806402 / 4 * 10 + 6.176666667 / 2)
    assert T4.scaling(b + 10) == pytest.approx(T4.speedup(b + 10) / T4.tangent(b + 10))


@pytest.mark.parametrize(("machines", "factor"), [(1, 1.0), (12, 1.0), (13, 1.0), (17, 0.9944), (40, 0.6920)])
def test_the_value_of_a_plan_is_its_machines_by_flop_per_dollar_and_scaling(
    machines: int, factor: float
) -> None:
    value = flopp.value(G4DN, T4, machines)
    assert value / (machines * flopp.flop_per_usd(G4DN, T4)) == pytest.approx(factor, abs=5e-4)


@pytest.mark.parametrize("rating", flopp.RATINGS.values(), ids=flopp.RATINGS)
def test_the_tangent_touches_the_curve_from_above(rating: flopp.Rating) -> None:
    turn = rating.b
    slope = (rating.speedup(turn + 1e-4) - rating.speedup(turn - 1e-4)) / 2e-4
    assert slope == pytest.approx(rating.c * rating.a / 4, rel=1e-6)
    for beyond in (0.5, 2, 10, 50, 100):
        assert rating.speedup(turn + beyond) < rating.tangent(turn + beyond)


@settings(max_examples=40)
@given(st.sampled_from(sorted(flopp.RATINGS)), st.integers(1, 31))
def test_within_the_measured_range_another_machine_scales_worse_but_is_worth_something(
    name: str, machines: int
) -> None:
    rating = flopp.RATINGS[name]
    offer = next(one for one in DEEPVM if one.instance_type == name)
    assert 0 < rating.scaling(machines + 1) <= rating.scaling(machines) <= 1
    assert flopp.value(offer, rating, machines + 1) > flopp.value(offer, rating, machines)


def single_anchor(budget_usd: float, value_of: dict[str, float]) -> MachinePlan | None:
    """The plan with one anchor of the highest value: machines times the value of their type."""
    limits = PlanLimits(max_usd_per_h=budget_usd, vcpus=flopp.QUOTAS)
    rows = [
        WorkerChoice(index, machines, machines * value_of[offer.instance_type])
        for index, offer in enumerate(DEEPVM)
        if offer.instance_type in value_of
        for machines in range(1, 129)
    ]
    return best(Architecture.SINGLE_ANCHOR, DEEPVM, rows, limits)


def test_the_published_baselines() -> None:
    """CostFirst rents as many machines as it can, PerformanceFirst as many of the fastest type."""
    cheap = single_anchor(3.0, dict.fromkeys(flopp.RATINGS, 1.0))
    fast = single_anchor(3.0, {"g5.xlarge": 1.0})
    assert machines(cheap) == [(15, "g4dn.xlarge", Market.SPOT), (1, "g4dn.xlarge", Market.ON_DEMAND)]
    assert machines(fast) == [(6, "g5.xlarge", Market.SPOT), (1, "g5.xlarge", Market.ON_DEMAND)]
    assert cheap is not None
    assert fast is not None
    assert (cheap.usd_per_h, fast.usd_per_h) == pytest.approx((2.893, 2.8168))
    assert single_anchor(0.5, {"g5.xlarge": 1.0}) is None


def test_plans_are_distinct_and_sorted_by_value() -> None:
    found = flopp.plans(DEEPVM, max_usd_per_h=4.0, count=5)
    values = [value for value, _ in found]
    assert len(found) == 5
    assert values == sorted(values, reverse=True)
    assert len({(plan.slots, plan.groups[0].offer, plan.groups[-1].offer) for _, plan in found}) == 5
    for value, plan in found:
        worker = plan.groups[0].offer
        rating = flopp.RATINGS[worker.instance_type]
        assert value == pytest.approx(flopp.value(worker, rating, plan.workers))
        assert plan.usd_per_h <= 4.0


@pytest.mark.parametrize("architecture", [Architecture.TIERING, Architecture.SINGLE_ANCHOR])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_as_many_plans_as_asked_for_of_the_architectures_asked_for(
    architecture: Architecture, count: int
) -> None:
    found = flopp.plans(DEEPVM, max_usd_per_h=3.0, count=count, architectures=(architecture,))
    assert [plan.architecture for _, plan in found] == [architecture] * count


def test_a_higher_budget_is_never_worth_less() -> None:
    budgets = (0.5, 1.0, 2.0, 4.0, 8.0, 30.0)
    values = [flopp.plans(DEEPVM, max_usd_per_h=usd, count=1)[0][0] for usd in budgets]
    assert values == sorted(values)


@pytest.mark.parametrize(("vcpus", "workers"), [(0, 0), (3, 0), (4, 1), (64, 16), (255, 63)])
def test_a_quota_bounds_the_workers(vcpus: int, workers: int) -> None:
    """A g4dn.xlarge has four vCPUs."""
    quotas = {"g/spot": vcpus}
    offers = [one for one in DEEPVM if one.instance_type == "g4dn.xlarge" or one.device_kind == "cpu"]
    found = flopp.plans(
        offers, max_usd_per_h=20.0, quotas=quotas, count=1, architectures=(Architecture.TIERING,)
    )
    assert (found[0][1].workers if found else 0) == workers


def test_no_more_machines_than_the_curves_are_valid_for() -> None:
    (_, plan), *_ = flopp.plans(DEEPVM, max_usd_per_h=500.0, quotas={}, count=1)
    assert plan.workers <= 128
