"""Tests of the budget policy by hand: utilities, mixed widths, prices, the controller, and its state."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from service.domain.policies.budget import (
    BudgetPolicy,
    BudgetState,
    highest_mu,
    mu_for_present_jobs,
    price_of_everything,
    steer,
    stored_state,
)
from service.domain.policies.framework.class_statistics import ClassLoad, ClassStatistics
from service.domain.policies.framework.policy import RoundHistory, RoundInput
from service.domain.policies.framework.widths import NOT_FOR_SALE, fixed_widths
from tests.unit.service.domain.policies.rounds import a_round, brute_force

LIMITS = {"budget_usd_per_h": 10.0, "expected_h_per_usd": 0.2, "highest_h_per_usd": 1000.0}


NEW = BudgetState()


def after(state: BudgetState = NEW, *, usd: float, hours: float = 1.0, **limits: float) -> BudgetState:
    """Return the state after `hours` in which `usd` were spent."""
    return steer(state, realised_usd=usd, elapsed_s=3600.0 * hours, **(LIMITS | limits))


@pytest.mark.parametrize(
    ("state", "usd", "hours", "ahead_h", "lasting", "factor"),
    [
        # Dollars over $10 an hour, less the hours; lasting grows by a hundredth of it an hour; e to the power of both.
        pytest.param(NEW, 10.0, 1.0, 0.0, 0.0, 1.0, id="as budgeted"),
        pytest.param(NEW, 30.0, 1.0, 2.0, 0.02, math.exp(0.22), id="two hours in advance"),
        pytest.param(NEW, 0.0, 1.0, -1.0, -0.01, math.exp(-0.11), id="an hour left over"),
        pytest.param(NEW, 60.0, 2.0, 4.0, 0.08, math.exp(0.48), id="two hours of time"),
        pytest.param(BudgetState(ahead_h=3.0, lasting=0.5), 10.0, 1.0, 3.0, 0.53, math.exp(0.83), id="carried on"),
        pytest.param(NEW, 1e6, 1.0, 24.0, 0.24, math.exp(2.64), id="at most a day in advance"),
        pytest.param(BudgetState(ahead_h=-23.5, lasting=0.3), 0.0, 1.0, -24.0, 0.3, 0.0, id="a day left over"),
        pytest.param(BudgetState(ahead_h=24.0, lasting=15.9), 10.0, 1.0, 24.0, 16.0, math.exp(18.4), id="bound"),
    ],
)  # fmt: skip
def test_the_controller_by_hand(
    state: BudgetState, usd: float, hours: float, ahead_h: float, lasting: float, factor: float
) -> None:
    found = after(state, usd=usd, hours=hours, highest_h_per_usd=1e18)
    mu = 0.2 * factor + 0.1 * max(factor - 1, 0.0) / 10.0
    assert (found.ahead_h, found.lasting) == (pytest.approx(ahead_h), pytest.approx(lasting))
    assert found.mu_h_per_usd == pytest.approx(mu)
    assert (found.spent_usd, found.elapsed_s) == (usd, 3600.0 * hours)


@pytest.mark.parametrize(
    ("limits", "usd", "mu"),
    [
        ({"highest_h_per_usd": 0.1}, 10.0, 0.1),
        ({"budget_usd_per_h": -1.0}, 1e6, 0.2),
        ({"budget_usd_per_h": -1.0, "expected_h_per_usd": -5.0}, 1.0, 0.0),
        ({"budget_usd_per_h": 0.0}, 0.0, 1000.0),
        ({"expected_h_per_usd": 0.0}, 10.0, 0.0),
        ({"expected_h_per_usd": 0.0}, 30.0, 0.1 * (math.exp(0.22) - 1) / 10.0),
    ],
)
def test_mu_is_bounded(limits: dict[str, float], usd: float, mu: float) -> None:
    assert after(usd=usd, **limits).mu_h_per_usd == pytest.approx(mu)


@drawn(st.lists(st.floats(0, 100), min_size=1, max_size=30))
@settings(max_examples=30)
def test_the_controller_keeps_its_bounds_and_adds_up_what_was_spent(spent: list[float]) -> None:
    state = BudgetState()
    for usd in spent:
        state = after(state, usd=usd)
        assert -24.0 <= state.ahead_h <= 24.0
        assert 0.0 <= state.mu_h_per_usd <= 1000.0
    assert state.spent_usd == pytest.approx(sum(spent))
    assert state.average_usd_per_h == pytest.approx(sum(spent) / len(spent))


@drawn(st.floats(0, 50), st.floats(0.1, 50))
@settings(max_examples=30)
def test_more_spending_makes_a_dollar_dearer(usd: float, more: float) -> None:
    assert after(usd=usd).mu_h_per_usd <= after(usd=usd + more).mu_h_per_usd


@pytest.mark.parametrize(
    ("prices", "expected"),
    [([1.0, 4.0], 1000.0), ([4.0, 0.5], 2000.0), ([0.0, 2.0], 500.0), ([0.0], 1.0), ([], 1.0), ([5e3], 1.0)],
)
def test_the_highest_mu_is_a_thousand_hours_over_the_cheapest_price(
    prices: list[float], expected: float
) -> None:
    assert highest_mu(np.array(prices)) == expected


@pytest.mark.parametrize(
    ("slots", "kind", "capacity", "usd_per_h", "expected"),
    [
        ([1, 2], [0, 0], [8], [0.0, 0.0], 8.0),  # without prices, slots stand for dollars
        ([1, 2], [0, 0], [8], [3.0, 5.0], 20.0),  # the cheaper one for each slot
        ([1, 1], [0, 1], [2, 3], [1.0, 4.0], 14.0),
        ([1, 2], [0, 0], [0], [3.0, 5.0], 0.0),
        ([1, 1], [0, 1], [2, 0], [1.0, math.nan], 2.0),
    ],
)
def test_the_price_of_all_slots(
    slots: list[int], kind: list[int], capacity: list[float], usd_per_h: list[float], expected: float
) -> None:
    round_ = a_round([[1.0] * len(slots)], slots, kind=kind, capacity=capacity, usd_per_h=usd_per_h)
    assert price_of_everything(round_) == pytest.approx(expected)


def test_a_kind_without_configurations_has_the_price_of_what_is_not_for_sale() -> None:
    round_ = a_round([[1.0, 1.0]], [1, 1], kind=[0, 1], capacity=[1, 1], usd_per_h=[1.0, 1.0])
    one = replace(round_.configurations, kind=np.array([0, 0]))
    assert price_of_everything(replace(round_, configurations=one)) == pytest.approx(1.0 + NOT_FOR_SALE)


def two_sizes(jobs: int = 1, **fields: Any) -> RoundInput:
    """Jobs with rates of 10 and 15 on one slot at $1 and two slots at $2 an hour."""
    return a_round([[10.0, 15.0]] * jobs, [1, 2], capacity=100, usd_per_h=[1.0, 2.0], **fields)


@pytest.mark.parametrize(
    ("usd_per_h", "mu"),
    [
        (2.0, 0.0),  # all that they would like
        (-1.0, 0.0),
        (1.5, 1.0),  # (1 + 2 mu) / 15 = (1 + mu) / 10 at mu = 1
        (1.0, 1.0),
        (0.5, 1000.0),
        (0.0, 1000.0),
    ],
)
def test_mu_for_the_present_jobs_by_hand(usd_per_h: float, mu: float) -> None:
    assert mu_for_present_jobs(two_sizes(), usd_per_h) == pytest.approx(mu, rel=1e-4)


def test_jobs_that_cannot_run_spend_nothing() -> None:
    nowhere = a_round([[0.0, 0.0]], [1, 2], capacity=4, usd_per_h=[1.0, 2.0])
    assert mu_for_present_jobs(nowhere, 0.5) == 0.0


@pytest.mark.parametrize(
    ("mu", "weight", "expected"),
    [
        # h * rate - mu * price with h = min over sizes of (weight + mu * price) / rate.
        (0.0, 1.0, [10 / 15, 1.0]),
        (0.5, 1.0, [10 * 2 / 15 - 0.5, 1.0]),
        (1.0, 1.0, [1.0, 1.0]),
        (4.0, 1.0, [1.0, 15 * 0.5 - 8.0]),
        (4.0, 3.0, [3.0, 15 * 0.7 - 8.0]),
    ],
)
def test_the_worth_of_configurations_by_hand(mu: float, weight: float, expected: list[float]) -> None:
    choices = BudgetPolicy(mu_h_per_usd=mu).choose(two_sizes(weight=[weight]), brute_force)
    assert choices.utility[0].tolist() == pytest.approx(expected)
    assert choices.idle.tolist() == [0.0]


def test_a_change_costs_the_delay_and_the_dollars_of_its_time() -> None:
    """A change of 360 s that serves an hour, and one that serves 1,200 s of remaining work."""
    policy = BudgetPolicy(mu_h_per_usd=1.0)
    fields = {"current": [0], "change_s": [360.0]}
    endless = policy.choose(two_sizes(**fields), brute_force)
    assert endless.utility[0].tolist() == pytest.approx([1.0, 1.0 - 0.1 * 3.0])
    assert endless.idle.tolist() == pytest.approx([-0.1])
    short = policy.choose(two_sizes(**fields, remaining=[15.0 * 1200]), brute_force)
    assert short.utility[0].tolist() == pytest.approx([1.0, 1.0 - 0.3 * 3.0])
    waiting = policy.choose(two_sizes(change_s=[360.0]), brute_force)
    assert waiting.utility[0].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("narrow_share", "narrow"), [(0.0, 0), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_a_mixed_class_has_its_share_of_narrow_jobs(narrow_share: float, narrow: int) -> None:
    """At mu = 1 both widths are equally good, so that a tenth of mu decides."""
    policy = BudgetPolicy(mu_h_per_usd=1.0, mixed_class=3.0, narrow_share=narrow_share)
    chosen = policy.choose(two_sizes(4, job_class=[3] * 4), brute_force).chosen
    assert (chosen == 0).sum() == narrow


def test_classes_that_are_not_mixed_have_mu_itself() -> None:
    policy = BudgetPolicy(mu_h_per_usd=1.0, mixed_class=3.0, narrow_share=1.0)
    utility = policy.choose(two_sizes(2, job_class=[3, 0]), brute_force).utility
    assert utility[1].tolist() == pytest.approx([1.0, 1.0])
    assert utility[0, 0] > utility[0, 1]
    none = BudgetPolicy(mu_h_per_usd=1.0, narrow_share=1.0)
    same = none.choose(two_sizes(2, job_class=[-1, 0]), brute_force).utility
    assert same[0].tolist() == pytest.approx([1.0, 1.0])


def history(state: dict[str, Any], **fields: Any) -> RoundHistory:
    return RoundHistory(
        **{
            "elapsed_s": 60.0, "usd_per_h": 2.0, "job_ids": ["x"], "classes": ["a"],
            "samples": np.array([math.nan]), "state": state, **fields,
        }
    )  # fmt: skip


def test_a_fixed_mu_has_no_state() -> None:
    policy = BudgetPolicy(mu_h_per_usd=0.5)
    advanced, state = policy.advance(two_sizes(), history({"budget": {"mu_h_per_usd": 9.0}}))
    assert (advanced, state) == (policy, {})


def test_a_round_carries_mu_and_the_statistics_on() -> None:
    policy = BudgetPolicy(usd_per_h=1.5)
    advanced, state = policy.advance(two_sizes(age_s=[5.0]), history({}))
    carried, statistics = stored_state(json.loads(json.dumps(state)))
    assert isinstance(advanced, BudgetPolicy)
    assert advanced.mu_h_per_usd == carried.mu_h_per_usd > 0.0
    assert (carried.elapsed_s, carried.spent_usd) == (60.0, pytest.approx(2.0 / 60))
    assert statistics.classes["a"].arrived == 1.0
    assert statistics.classes["a"].rates == {"kind0/1/1": 10.0, "kind0/2/1": 15.0}
    _, later = policy.advance(two_sizes(age_s=[65.0]), history(dict(state)))
    assert later["budget"]["elapsed_s"] == 120.0


WIDTHS = fixed_widths(np.array([10.0]), np.array([[10.0, 15.0]]), np.array([1.0, 2.0]), budget_usd_per_h=1.2)
"""Half of the jobs are narrow, at mu = 1."""


def mixing(
    names: list[str], classes: list[str], *, ahead_h: float = 0.0, lasting: float = 0.0, **fields: Any
) -> BudgetPolicy:
    """The policy of a round at $1.2 an hour, where jobs of class `a` arrive as in `WIDTHS`."""
    rates = {"kind0/1/1": 10.0, "kind0/2/1": 15.0}
    loads = {name: ClassLoad(arrived=100.0, rates=rates) for name in names}
    loads["a"] = ClassLoad(arrived=100.0, sized=100.0, samples=1000.0, rates=rates)
    statistics = ClassStatistics(observed_s=100.0, classes=loads)
    state = {
        "budget": dataclasses.asdict(BudgetState(mu_h_per_usd=1.0, ahead_h=ahead_h, lasting=lasting)),
        "classes": dataclasses.asdict(statistics),
    }
    jobs = len(classes)
    index = {name: number for number, name in enumerate(sorted({*classes}))}
    given = two_sizes(jobs, job_class=[index[one] for one in classes], age_s=[500.0] * jobs)
    told = history(
        state, elapsed_s=1e-3, usd_per_h=1.2, job_ids=[str(one) for one in range(jobs)], classes=classes,
        samples=np.full(jobs, math.nan),
    )  # fmt: skip
    found, _ = replace(BudgetPolicy(usd_per_h=1.2), **fields).advance(given, told)
    assert isinstance(found, BudgetPolicy)
    return found


def test_the_widths_of_the_optimum_by_hand() -> None:
    assert (WIDTHS.mixed_class, WIDTHS.narrow_share) == (0, pytest.approx(0.5))
    assert WIDTHS.mu_h_per_usd == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("classes", "mixed"),
    [
        (["a"], 0.0),
        (["a", "b"], 0.0),
        (
            ["0", "a", "b", "a"],
            1.0,
        ),  # an index among the classes of the round, not among those that are learned
        (["b", "c"], -1.0),
        ([], -1.0),
    ],
)
def test_the_mixed_class_of_the_optimum_reaches_the_round(classes: list[str], mixed: float) -> None:
    found = mixing(["b", "c"], classes)
    assert found.mixed_class == mixed
    assert found.mu_h_per_usd == pytest.approx(1.0, rel=1e-3)
    assert found.narrow_share == (pytest.approx(0.5, abs=1e-3) if mixed >= 0 else 0.0)


@pytest.mark.parametrize(
    ("ahead_h", "lasting", "share"),
    [
        # The correction of mu is e^(ahead / 10 + lasting), and a band of 0.2 moves the whole class.
        (0.0, 0.0, 0.5),
        (0.5, 0.0, 0.75),
        (-0.5, 0.0, 0.25),
        (0.0, 0.05, 0.75),
        (-0.9, 0.0, 0.05),
    ],
)
def test_spending_moves_the_share_of_the_narrow_width(ahead_h: float, lasting: float, share: float) -> None:
    found = mixing([], ["a"], ahead_h=ahead_h, lasting=lasting)
    # Too much spending raises mu by a little more than the correction: a dollar counts where none was expected.
    assert found.narrow_share == pytest.approx(share, abs=0.025)
    assert found.mu_h_per_usd == pytest.approx(1.0)


@pytest.mark.parametrize(("ahead_h", "mu"), [(5.0, math.exp(0.5)), (-5.0, math.exp(-0.5))])
def test_beyond_the_band_mu_itself_is_corrected(ahead_h: float, mu: float) -> None:
    found = mixing([], ["a"], ahead_h=ahead_h)
    assert (found.mixed_class, found.narrow_share) == (-1.0, 0.0)
    assert found.mu_h_per_usd == pytest.approx(mu, rel=0.05)


def test_jobs_of_a_mixed_class_keep_their_width() -> None:
    """Running jobs that are narrow stay narrow first, then jobs without slots, and wide jobs last."""
    policy = BudgetPolicy(mu_h_per_usd=1.0, mixed_class=0.0, narrow_share=0.5)
    fields = {"change_s": [0.0] * 4}

    def chosen(current: list[int]) -> list[int]:
        return policy.choose(two_sizes(4, current=current, **fields), brute_force).chosen.tolist()

    assert chosen([1, 0, 1, 0]) == [1, 0, 1, 0]
    assert chosen([1, 1, 0, 0]) == [1, 1, 0, 0]
    assert chosen([1, 1, -1, 0]) == [1, 1, 0, 0]
    assert chosen([0, 0, -1, 1]) == [0, 0, 1, 1]
    assert chosen([-1, -1, -1, -1]) == [0, 0, 1, 1]
    assert chosen([0, 0, 0, -1]) == [0, 0, 1, 1]
    policy = replace(policy, narrow_share=0.25)
    assert chosen([-1, 1, 0, 0]) == [1, 1, 0, 1]


@pytest.mark.parametrize(("narrow_share", "narrow"), [(0.49, 0), (0.51, 1), (0.99, 1)])
def test_one_job_has_the_width_of_the_larger_share(narrow_share: float, narrow: int) -> None:
    policy = BudgetPolicy(mu_h_per_usd=1.0, mixed_class=0.0, narrow_share=narrow_share)
    assert (policy.choose(two_sizes(1), brute_force).chosen == 0).sum() == narrow


def test_the_learned_loads_decide_once_enough_jobs_arrived() -> None:
    """At a budget of twice what the narrow width needs, the wide one pays."""
    load = ClassLoad(arrived=100.0, sized=100.0, samples=1000.0, rates={"kind0/1/1": 10.0, "kind0/2/1": 15.0})
    known = ClassStatistics(observed_s=100.0, classes={"a": load})
    policy, nothing = BudgetPolicy(usd_per_h=1.2), BudgetState()

    def mu(statistics: ClassStatistics) -> float:
        return policy.after_spending(
            two_sizes(), statistics, nothing, usd_per_h=1.2, elapsed_s=60.0
        ).mu_h_per_usd

    # One job of ten samples a second: a job in the system costs $1, and $1.33 at the wide width for a third less.
    assert mu(known) == pytest.approx((1 - 10 / 15) / (20 / 15 - 1))
    assert mu(ClassStatistics()) == pytest.approx(1.0, rel=1e-4)
    richer = replace(policy, usd_per_h=5.0)
    slack = richer.after_spending(two_sizes(), known, nothing, usd_per_h=5.0, elapsed_s=60.0)
    assert slack.mu_h_per_usd == 0.0


@pytest.mark.parametrize("elapsed_s", [0.0, math.nan])
def test_a_round_of_unknown_length_leaves_the_state(elapsed_s: float) -> None:
    state = BudgetState(mu_h_per_usd=0.7, spent_usd=3.0, elapsed_s=60.0)
    policy = BudgetPolicy(usd_per_h=1.2)
    found = policy.after_spending(two_sizes(), ClassStatistics(), state, usd_per_h=0.0, elapsed_s=elapsed_s)
    assert found == state


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({}, BudgetState()),
        ({"budget": {"mu_h_per_usd": 0.5, "of_a_later_version": 1}}, BudgetState(mu_h_per_usd=0.5)),
        ({"budget": dataclasses.asdict(BudgetState(lasting=2.0))}, BudgetState(lasting=2.0)),
    ],
)
def test_a_stored_state_of_another_version_is_read_as_far_as_it_is_known(
    stored: dict[str, Any], expected: BudgetState
) -> None:
    assert stored_state(stored) == (expected, ClassStatistics())
