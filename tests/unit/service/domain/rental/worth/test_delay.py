"""Tests of renting by the price of delay: widths worked out by hand, hysteresis, starts and minimum billing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.registry import policy
from service.domain.rental.machines import MachineReason, MachineState
from service.domain.rental.rental_targets import RentalRules
from service.domain.rental.worth.prices import HYSTERESIS
from tests.unit.service.builders import NOW
from tests.unit.service.domain.rental.worth.tables import (
    TableCluster,
    best_width,
    decided,
    power,
    rented,
    single,
)

LONG_LOW = {f"m{index:02}": NOW - timedelta(hours=1) for index in range(64)}


@pytest.mark.parametrize(
    ("mu", "exact", "width"), [(1e-6, 16.0, 16), (0.2, 11.67, 12), (0.43, 5.43, 5), (1.0, 2.33, 2)]
)
def test_a_job_gets_the_width_at_which_its_delay_and_dollars_are_least(
    mu: float, exact: float, width: int
) -> None:
    """Speedup k^0.7 at $1 a slot: (1 + mu k) / k^0.7 is least at k = 0.7 / (0.3 mu), at most 16."""
    assert exact == pytest.approx(min(0.7 / (0.3 * mu), 16.0), abs=0.01)
    assert width == best_width(power(0.7), mu)
    assert len(decided(TableCluster([power(0.7)]), mu).rent) == width


@pytest.mark.parametrize("present", [1, 3, 7])
def test_a_running_job_grows_to_that_width(present: int) -> None:
    cluster = TableCluster([power(0.7)], held=[present])
    assert len(decided(cluster, 0.2, rented(present)).rent) == 12 - present


def test_a_job_without_speedup_gets_one_slot_and_perfect_speedup_all() -> None:
    assert len(decided(TableCluster([[1.0] * 16]), 0.01).rent) == 1
    assert len(decided(TableCluster([power(1.0)]), 10.0).rent) == 16


def test_every_job_gets_its_own_width() -> None:
    speeds = [power(0.7), power(0.5), power(0.3)]
    widths = [best_width(speed, 0.2) for speed in speeds]
    assert widths == [12, 5, 2]
    targets = decided(TableCluster(speeds), 0.2)
    assert len(targets.rent) == sum(widths)


def test_a_heavier_job_gets_more() -> None:
    """A weight of 2 is as good as half the mu: 0.7 / (0.3 * 0.1) = 23 slots of 16."""
    assert len(decided(TableCluster([power(0.7)], weight=[2.0]), 0.43).rent) == best_width(power(0.7), 0.215)
    assert len(decided(TableCluster([power(0.7)], weight=[0.5]), 0.43).rent) == best_width(power(0.7), 0.86)


def test_dearer_machines_are_as_good_as_a_larger_mu() -> None:
    cluster = TableCluster([power(0.7)], usd_per_slot_h=2.0)
    targets = decided(cluster, 0.43, offers=[single(on_demand_usd_per_h=2.0)])
    assert len(targets.rent) == best_width(power(0.7), 0.86)


def test_own_hosts_are_used_before_machines_and_cost_nothing_more() -> None:
    """With four hosts of its own, a job of k^0.7 has enough at mu = 0.2: 0.7 / (0.3 * 0.2) - 4 / 0.3 < 0."""
    for own, mu in ((4, 0.2), (4, 0.1), (2, 0.1), (8, 0.05)):
        width = best_width(power(0.7), mu, own=own)
        rents = len(decided(TableCluster([power(0.7)], held=[own], own=own), mu).rent)
        assert rents == width - own, (own, mu)


def test_two_jobs_count_on_half_of_the_own_hosts_each() -> None:
    width = best_width(power(0.7), 0.1, own=2)
    assert width > 2
    cluster = TableCluster([power(0.7)] * 2, held=[2, 2], own=4)
    assert len(decided(cluster, 0.1).rent) == 2 * (width - 2)


def test_the_reason_has_the_delay_and_the_dollars() -> None:
    """At mu = 0.2, twelve slots do 3.4 h of the job's delay and dollars an hour, which is worth $17."""
    message = decided(TableCluster([power(0.7)]), 0.2).rent[0].message
    assert message.startswith("12 x on-demand single: spares 3.4 h of delay per hour, worth $17")
    assert message.endswith("/h at a price of $12.00/h, for j0 (starts)")


def test_limits_bound_the_width() -> None:
    cluster = TableCluster([power(0.7)])
    few = decided(cluster, 0.2, rules=RentalRules(max_machines=7, idle_s=0.0))
    assert len(few.rent) == 7
    capped = decided(cluster, 0.2, rules=RentalRules(max_machines=64, max_usd_per_h=5.0, idle_s=0.0))
    assert len(capped.rent) == 5
    assert decided(replace(cluster, cap_usd_per_h=0.5), 0.2).rent == ()


@pytest.mark.parametrize(("mu", "kept"), [(0.2, 14), (0.24, 14), (0.29, 12), (0.43, 8), (1.0, 4)])
def test_machines_with_a_job_are_kept_until_mu_has_grown_by_the_hysteresis(mu: float, kept: int) -> None:
    """Kept are the slots that are worth renting at mu / 1.5."""
    assert best_width(power(0.7), mu / HYSTERESIS) == pytest.approx(kept, abs=2)
    cluster = TableCluster([power(0.7)], held=[14])
    targets = decided(cluster, mu, rented(14), low_since=LONG_LOW)
    assert 14 - len(targets.release) == min(14, best_width(power(0.7), mu / HYSTERESIS))
    assert {one.reason for one in targets.release} <= {MachineReason.NOT_WORTH_IT}
    assert targets.rent == () if mu > 0.2 else True


def test_a_mu_that_fluctuates_by_a_fifth_neither_buys_nor_returns() -> None:
    width = best_width(power(0.7), 0.2)
    cluster, machines = TableCluster([power(0.7)], held=[width]), rented(width)
    for mu in (0.2, 0.24, 0.2, 0.22, 0.19, 0.24):
        targets = decided(cluster, mu, machines, low_since=LONG_LOW)
        assert (targets.release, len(targets.rent) <= 1) == ((), True), mu


def test_an_idle_machine_that_no_round_would_use_is_returned_at_mu_itself() -> None:
    """Six of eight slots are used. At mu = 0.43 five are worth renting, at 0.43 / 1.5 eight would be."""
    cluster = TableCluster([power(0.7)], held=[6])
    targets = decided(cluster, 0.43, rented(8), low_since=LONG_LOW)
    assert sorted(one.machine_id for one in targets.release) == ["m06", "m07"]
    assert {one.reason for one in targets.release} == {MachineReason.IDLE}


def test_a_machine_is_paid_for_its_minimum_before_it_is_returned() -> None:
    fresh = rented(8, billed_from=NOW - timedelta(seconds=200), min_billed_s=3600.0)
    cluster = TableCluster([power(0.7)], held=[6])
    assert decided(cluster, 0.43, fresh, low_since=LONG_LOW).release == ()


def width_with(unused_h: float, left_h: float, mu: float) -> int:
    """The size with the least delay and dollars until the end, if each machine has these unused hours."""
    costs = [
        left_h / rate + unused_h + mu * size * (left_h / rate + unused_h)
        for size, rate in enumerate(power(0.7), start=1)
    ]
    return 1 + costs.index(min(costs))


@pytest.mark.parametrize("left_h", [0.02, 0.1, 0.5, 2.0, 100.0])
def test_machines_that_boot_must_repay_their_start(left_h: float) -> None:
    """A start of six minutes leaves a short job with fewer machines, and never without any."""
    cluster = TableCluster([power(0.7)], left_h=left_h)
    rents = len(decided(cluster, 0.2, boot_s={("cloud", "single"): 360.0}).rent)
    assert rents == pytest.approx(width_with(0.1, left_h, 0.2), abs=1)
    assert rents >= 1


def test_minimum_billing_counts_for_short_jobs_only() -> None:
    """Paid for an hour at least, machines for a job of a minute are few; for a job of ten hours the width is the usual one."""
    hourly = [single(min_billed_s=3600.0)]
    short = len(decided(TableCluster([power(0.7)], left_h=1 / 60), 0.2, offers=hourly).rent)
    middle = len(decided(TableCluster([power(0.7)], left_h=1.0), 0.2, offers=hourly).rent)
    long = len(decided(TableCluster([power(0.7)], left_h=100.0), 0.2, offers=hourly).rent)
    assert 1 <= short < middle < long == 12


def test_a_running_job_that_is_about_to_end_gets_no_more_machines() -> None:
    slow = {("cloud", "single"): 600.0}
    for left_h, grows in ((0.05, False), (10.0, True)):
        cluster = TableCluster([power(0.7)], held=[2], left_h=left_h)
        assert bool(decided(cluster, 0.2, rented(2), boot_s=slow).rent) is grows


def test_unknown_lengths_count_as_the_horizon() -> None:
    """An hour: six idle minutes at the end make machines a tenth dearer, and the width 0.7 / (0.3 * 0.22) = 10.6."""
    rules = RentalRules(max_machines=64, idle_s=360.0)
    known = decided(TableCluster([power(0.7)]), rules=rules)
    unknown = decided(TableCluster([power(0.7)], left_h=float("nan")), rules=rules)
    assert (len(known.rent), len(unknown.rent)) == (12, 11)


def test_launching_machines_count() -> None:
    coming = rented(12, state=MachineState.LAUNCHING)
    cluster = TableCluster([power(0.7)])
    targets = decided(cluster, 0.2, rented(0))
    assert len(targets.rent) == 12
    joined = replace(cluster, nodes=[])
    assert decided(joined, 0.2, coming).rent == ()


def test_a_budget_gives_the_mu_at_which_present_jobs_spend_it() -> None:
    for usd_per_h, width in ((12.0, 12), (6.0, 6), (3.0, 3)):
        targets = decided(TableCluster([power(0.7)]), policy=BudgetPolicy(usd_per_h=usd_per_h))
        assert len(targets.rent) == pytest.approx(width, abs=1)
        assert sum(one.usd_per_h for one in targets.rent) <= usd_per_h * 1.1


def test_two_jobs_share_a_budget() -> None:
    targets = decided(TableCluster([power(0.7)] * 2), policy=BudgetPolicy(usd_per_h=12.0))
    assert len(targets.rent) == pytest.approx(12, abs=2)


def test_without_a_budget_the_best_buy_decides() -> None:
    for one in (policy("budget"), policy("goodput")):
        targets = decided(TableCluster([power(0.7)]), policy=one)
        assert targets.rent
        assert all("delay" not in target.message for target in targets.rent)


@settings(max_examples=40, deadline=None)
@given(
    exponents=st.lists(st.floats(0.1, 0.95), min_size=1, max_size=3),
    mu=st.floats(0.02, 5.0),
    price=st.sampled_from([0.25, 1.0, 3.0]),
)
def test_concave_jobs_get_their_widths_and_a_second_pass_changes_nothing(
    exponents: list[float], mu: float, price: float
) -> None:
    speeds = [power(exponent, 8) for exponent in exponents]
    offer = single(on_demand_usd_per_h=price)
    cluster = TableCluster(speeds, usd_per_slot_h=price)
    first = decided(cluster, mu, offers=[offer])
    widths = [best_width(speed, mu, usd_per_h=price) for speed in speeds]
    assert len(first.rent) == pytest.approx(sum(widths), abs=len(widths))
    machines = rented(len(first.rent), usd_per_h=price)
    # Each job holds its width as far as the machines go.
    held, left = [], len(machines)
    for width in widths:
        held.append(min(width, left))
        left -= held[-1]
    second = decided(replace(cluster, held=held), mu, machines, offers=[offer], low_since=LONG_LOW)
    assert len(second.rent) + len(second.release) <= len(widths)


@settings(max_examples=25, deadline=None)
@given(exponent=st.floats(0.2, 0.9), mus=st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)))
def test_a_larger_mu_never_rents_more(exponent: float, mus: tuple[float, float]) -> None:
    low, high = sorted(mus)
    cluster = TableCluster([power(exponent)])
    assert len(decided(cluster, high).rent) <= len(decided(cluster, low).rent)


@pytest.mark.parametrize(
    ("most_usd_per_h", "present", "rents"), [(-1.0, 0, 6), (2.0, 0, 2), (2.0, 1, 1), (0.0, 0, 0)]
)
def test_a_budget_that_cannot_pay_all_jobs_is_not_exceeded(
    most_usd_per_h: float, present: int, rents: int
) -> None:
    """Six jobs of one slot at $1 an hour, at a price of delay at which each is worth its machine."""
    policy = BudgetPolicy(usd_per_h=2.0, mu_h_per_usd=500.0, rents_usd_per_h=most_usd_per_h)
    cluster = TableCluster([[1.0]] * 6, held=[1] * present)
    targets = decided(cluster, machines=rented(present), policy=policy)
    assert len(targets.rent) == rents - (0 if most_usd_per_h >= 0 else present)
    assert bool(targets.held_back) is (most_usd_per_h >= 0)
