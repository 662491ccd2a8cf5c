"""Tests of DeepVM's published plans, and of the shape of its rating."""

from __future__ import annotations

import pytest

from headway.contract.values.markets import Market
from service.domain.rental import flopp
from service.domain.rental.catalogue import BUILT_IN, DEEPVM
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachinePlan


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
