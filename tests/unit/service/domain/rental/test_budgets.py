"""Tests of the usage of budgets and of the times of their notices."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.money import BudgetKind, Period, Scope
from service.domain.cluster.snapshot import Cap
from service.domain.rental.budgets import (
    Budget,
    caps_of,
    counts_from,
    expected_usd,
    notice_due,
    period_of,
    usage_of,
)

NOW = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)
"""Wednesday on which the tests take place."""
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
DOLLARS = st.floats(0, 1e6)


def budget(**fields: Any) -> Budget:
    return Budget(
        **{
            "name": "b",
            "scope": Scope.CLUSTER,
            "project": None,
            "kind": BudgetKind.PERIOD,
            "usd": 100.0,
            "period": Period.DAY,
            "hard": True,
            "version": 1,
            "created_at": NOW - timedelta(days=3),
            "updated_at": NOW - timedelta(days=3),
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("period", "begin", "end"),
    [(Period.DAY, (11, 18), (11, 19)), (Period.WEEK, (11, 16), (11, 23)), (Period.MONTH, (11, 1), (12, 1))],
)
def test_periods_are_those_of_the_calendar(
    period: Period, begin: tuple[int, int], end: tuple[int, int]
) -> None:
    assert period_of(period, NOW) == (
        datetime(2026, *begin, tzinfo=UTC),
        datetime(2026, *end, tzinfo=UTC),
    )


@given(st.sampled_from(Period), MOMENTS)
def test_every_moment_is_in_one_period_and_they_follow_each_other(period: Period, now: datetime) -> None:
    begin, end = period_of(period, now)
    assert begin <= now < end
    assert period_of(period, end)[0] == end
    assert period_of(period, end - timedelta(microseconds=1)) == (begin, end)


def test_a_period_says_where_it_will_end() -> None:
    stands = usage_of(budget(), spent_usd=40, usd_per_h=4, now=NOW)
    assert (stands.remaining_usd, stands.exhausted, stands.over) == (60, False, False)
    assert stands.forecast_usd == 40 + 4 * 11.5
    assert stands.exhausted_at is None
    faster = usage_of(budget(), spent_usd=40, usd_per_h=10, now=NOW)
    assert faster.exhausted_at == NOW + timedelta(hours=6)


def test_small_amounts_are_not_said_as_nothing() -> None:
    cap = budget(kind=BudgetKind.HOURLY_CAP, period=None, usd=0.001)
    assert "$0.0040 of $0.0010 an hour now" in usage_of(cap, spent_usd=0, usd_per_h=0.004, now=NOW).message


def test_what_is_spent_is_spent() -> None:
    stands = usage_of(budget(), spent_usd=101, usd_per_h=1, now=NOW)
    assert (stands.remaining_usd, stands.exhausted, stands.over) == (0, True, True)
    assert stands.exhausted_at == NOW
    assert "2026-11-19" in stands.message


def test_an_hourly_cap_looks_at_now_and_an_average_at_all_time() -> None:
    cap = usage_of(
        budget(kind=BudgetKind.HOURLY_CAP, period=None, usd=5), spent_usd=1e6, usd_per_h=5, now=NOW
    )
    assert not cap.over
    average = budget(
        kind=BudgetKind.LONG_RUN, period=None, usd=5, hard=False, updated_at=NOW - timedelta(hours=10)
    )
    assert counts_from(average, NOW) == datetime(2026, 11, 18, 2, tzinfo=UTC)
    assert usage_of(average, spent_usd=60, usd_per_h=0, now=NOW).over
    assert not usage_of(average, spent_usd=50, usd_per_h=50, now=NOW).over


def test_only_hard_budgets_forbid_and_a_period_only_when_it_is_spent() -> None:
    cap = budget(name="cap", kind=BudgetKind.HOURLY_CAP, period=None, usd=5, project="p", scope=Scope.PROJECT)
    daily, soft = budget(name="daily"), budget(name="soft", hard=False)

    def forbids(*budgets: Budget, spent: float) -> tuple[Cap, ...]:
        return caps_of([(one, usage_of(one, spent_usd=spent, usd_per_h=1, now=NOW)) for one in budgets])

    assert forbids(cap, daily, soft, spent=99) == (Cap("cap", "p", 5),)
    assert forbids(cap, daily, soft, spent=100) == (Cap("cap", "p", 5), Cap("daily", None, 0.0))
    assert forbids(budget(usd=0.0), spent=0) == (Cap("b", None, 0.0),)


@given(DOLLARS, DOLLARS, DOLLARS, st.sampled_from(Period), MOMENTS)
def test_a_standing_is_made_of_finite_numbers_that_agree(
    usd: float, spent: float, rate: float, period: Period, now: datetime
) -> None:
    stands = usage_of(budget(usd=usd, period=period), spent_usd=spent, usd_per_h=rate, now=now)
    assert stands.remaining_usd is not None
    assert stands.forecast_usd is not None
    assert math.isfinite(stands.share)
    assert stands.remaining_usd >= 0
    assert stands.forecast_usd >= spent
    if stands.exhausted_at is not None:
        assert stands.period_to is not None
        assert now <= stands.exhausted_at <= stands.period_to
    assert stands.exhausted == bool(caps_of([(budget(usd=usd, period=period), stands)]))


@given(st.lists(st.floats(0, 2), max_size=20))
def test_each_share_is_told_once_as_long_as_money_is_only_spent(shares: list[float]) -> None:
    told: tuple[datetime, float] | None = None
    said = []
    for share in sorted(shares):
        due = notice_due(share, NOW, told)
        if due is not None:
            told = (NOW, due)
            said.append(due)
    assert said == sorted(set(said))
    assert set(said) <= {0.8, 1.0}


def test_another_period_or_more_money_is_told_of_anew() -> None:
    told = (NOW, 1.0)
    assert notice_due(1.2, NOW, told) is None
    assert notice_due(0.9, NOW + timedelta(days=1), told) == 0.8
    assert notice_due(0.5, NOW, told) == 0.0
    assert notice_due(math.nan, NOW, told) is None


def test_what_a_job_will_cost_is_known_only_with_speed_end_and_price() -> None:
    known: dict[str, Any] = {"samples": 100, "total_samples": 3700, "samples_per_s": 1.0}
    assert expected_usd(5, 10, **known) == 15
    assert expected_usd(5, None, **known) is None
    for missing in ("total_samples", "samples_per_s"):
        assert expected_usd(5, 10, **{**known, missing: None}) is None
    assert expected_usd(5, 10, **{**known, "samples_per_s": 0.0}) is None
    assert expected_usd(5, 10, **{**known, "samples_per_s": math.inf}) is None
