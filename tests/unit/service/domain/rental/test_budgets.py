"""Tests of the usage of budgets and of the times of their notices."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.money import BudgetKind, Period, Scope
from service.domain.cluster.snapshot import Cap
from service.domain.rental.budgets import (
    Budget,
    JobSpend,
    caps_of,
    counts_from,
    expected_usd,
    notice_due,
    period_of,
    subject_of_budget,
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


@settings(max_examples=50)
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


@settings(max_examples=50)
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


@settings(max_examples=40)
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
    assert expected_usd(5, 10, 3600.0) == 15
    assert expected_usd(5, None, 3600.0) is None
    assert expected_usd(5, 10, None) is None
    assert expected_usd(5, 10, math.inf) is None


@pytest.mark.parametrize(
    ("period", "now", "begin", "end"),
    [
        (Period.DAY, (2026, 12, 31, 23, 59), (2026, 12, 31), (2027, 1, 1)),
        (Period.WEEK, (2026, 11, 16, 0, 0), (2026, 11, 16), (2026, 11, 23)),
        (Period.WEEK, (2027, 1, 2, 5, 0), (2026, 12, 28), (2027, 1, 4)),
        (Period.MONTH, (2026, 12, 31, 23, 59), (2026, 12, 1), (2027, 1, 1)),
        (Period.MONTH, (2028, 2, 29, 12, 0), (2028, 2, 1), (2028, 3, 1)),
        (Period.MONTH, (2026, 1, 31, 12, 0), (2026, 1, 1), (2026, 2, 1)),
    ],
)
def test_periods_at_the_ends_of_weeks_months_and_years(
    period: Period, now: tuple[int, ...], begin: tuple[int, int, int], end: tuple[int, int, int]
) -> None:
    found = period_of(period, datetime(*now, tzinfo=UTC))  # type: ignore[misc,arg-type]
    assert found == (datetime(*begin, tzinfo=UTC), datetime(*end, tzinfo=UTC))


def test_a_period_is_in_utc_whatever_the_zone_of_the_moment() -> None:
    """Half past one on Thursday in Berlin is half past midnight UTC; half past midnight there is still Wednesday."""
    berlin = timezone(timedelta(hours=1))
    assert period_of(Period.DAY, datetime(2026, 11, 19, 1, 30, tzinfo=berlin))[0].day == 19
    assert period_of(Period.DAY, datetime(2026, 11, 19, 0, 30, tzinfo=berlin))[0].day == 18


def test_a_budget_without_a_period_counts_from_the_hour_of_its_last_change() -> None:
    changed = datetime(2026, 11, 18, 9, 59, 59, 999_999, tzinfo=UTC)
    budget_ = budget(kind=BudgetKind.LONG_RUN, period=None, updated_at=changed)
    assert counts_from(budget_, NOW) == datetime(2026, 11, 18, 9, tzinfo=UTC)
    assert counts_from(budget(updated_at=changed), NOW) == datetime(2026, 11, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spent", "rate", "ends_after_h"),
    [
        (40.0, 0.0, None),
        (40.0, 5.0, None),
        (40.0, 60 / 11.5, None),
        (40.0, 6.0, 10.0),
        (40.0, 60.0, 1.0),
        (100.0, 0.0, 0.0),
        (100.0 * (1 - 1e-10), 0.0, 0.0),
        (250.0, 9.0, 0.0),
    ],
)
def test_when_a_period_of_a_hundred_dollars_is_used_up(
    spent: float, rate: float, ends_after_h: float | None
) -> None:
    """Half past noon leaves 11.5 hours of the day."""
    usage = usage_of(budget(), spent_usd=spent, usd_per_h=rate, now=NOW)
    expected = None if ends_after_h is None else NOW + timedelta(hours=ends_after_h)
    assert usage.exhausted_at == expected
    assert usage.exhausted is (ends_after_h == 0.0)
    assert usage.over is (spent > 100)
    assert usage.forecast_usd == pytest.approx(spent + rate * 11.5)
    assert usage.average_usd_per_h == pytest.approx(spent / 12.5)
    assert usage.share == pytest.approx(spent / 100)
    assert (usage.period_from, usage.period_to) == period_of(Period.DAY, NOW)


@pytest.mark.parametrize(
    ("hard", "spent", "rate", "says"),
    [
        (True, 40, 1, "about $51.50 expected by its end"),
        (True, 40, 12, "used up by 2026-11-18 17:30 UTC"),
        (True, 100, 1, "jobs wait until 2026-11-19 00:00 UTC"),
        (False, 100, 1, "the next period begins on 2026-11-19 00:00 UTC"),
    ],
)
def test_a_period_explains_what_its_user_has_to_expect(
    hard: bool, spent: float, rate: float, says: str
) -> None:
    usage = usage_of(budget(hard=hard), spent_usd=spent, usd_per_h=rate, now=NOW)
    assert usage.message.startswith(f"${spent:.2f} of $100.00 this day")
    assert says in usage.message


@pytest.mark.parametrize(
    ("kind", "spent", "rate", "over", "share"),
    [
        (BudgetKind.HOURLY_CAP, 0, 4.9, False, 0.98),
        (BudgetKind.HOURLY_CAP, 0, 5.0, False, 1.0),
        (BudgetKind.HOURLY_CAP, 0, 5.1, True, 1.02),
        (BudgetKind.HOURLY_CAP, 1e6, 0.0, False, 0.0),
        (BudgetKind.LONG_RUN, 49, 900.0, False, 0.98),
        (BudgetKind.LONG_RUN, 50, 0.0, False, 1.0),
        (BudgetKind.LONG_RUN, 51, 0.0, True, 1.02),
    ],
)
def test_dollars_an_hour_are_measured_now_or_on_average(
    kind: BudgetKind, spent: float, rate: float, over: bool, share: float
) -> None:
    """Five dollars an hour, for ten hours."""
    since = NOW - timedelta(hours=10, minutes=30)
    budget_ = budget(kind=kind, period=None, usd=5, updated_at=since)
    usage = usage_of(budget_, spent_usd=spent, usd_per_h=rate, now=NOW.replace(minute=0))
    assert (usage.over, usage.share) == (over, pytest.approx(share))
    assert (usage.exhausted, usage.remaining_usd, usage.forecast_usd, usage.period_to) == (
        False,
        None,
        None,
        None,
    )
    assert ("over the budget" in usage.message) is over


def test_in_the_first_moment_of_a_budget_nothing_was_spent_on_average() -> None:
    fresh = budget(kind=BudgetKind.LONG_RUN, period=None, updated_at=NOW.replace(minute=0))
    usage = usage_of(fresh, spent_usd=9, usd_per_h=0, now=NOW.replace(minute=0))
    assert usage.average_usd_per_h == 0


@pytest.mark.parametrize(("usd", "share"), [(0.0, 1.0), (1e-6, 1.0), (2e-6, 0.0), (10.0, 0.0)])
def test_a_budget_of_nothing_is_always_used_up(usd: float, share: float) -> None:
    assert usage_of(budget(usd=usd), spent_usd=0, usd_per_h=0, now=NOW).share == share


def test_an_average_imposes_no_cap_however_hard_it_is() -> None:
    average = budget(kind=BudgetKind.LONG_RUN, period=None, usd=1)
    usage = usage_of(average, spent_usd=1e6, usd_per_h=1e6, now=NOW)
    assert usage.over
    assert caps_of([(average, usage)]) == ()
    assert caps_of([]) == ()


@pytest.mark.parametrize(
    ("share", "last", "due"),
    [
        (0.0, None, None),
        (0.79, None, None),
        (0.8, None, 0.8),
        (0.8 * (1 - 1e-10), None, 0.8),
        (0.99, None, 0.8),
        (1.0, None, 1.0),
        (7.0, None, 1.0),
        (0.9, 0.8, None),
        (1.0, 0.8, 1.0),
        (1.5, 1.0, None),
        (0.9, 1.0, 0.8),
        (0.1, 0.8, 0.0),
        (math.inf, None, None),
    ],
)
def test_which_share_is_announced(share: float, last: float | None, due: float | None) -> None:
    """A fall below a share is stored as well, so that a later rise is announced again."""
    assert notice_due(share, NOW, None if last is None else (NOW, last)) == due


def test_each_budget_has_notices_of_its_own() -> None:
    assert subject_of_budget("team") == "budget/team"
    assert subject_of_budget("team") != subject_of_budget("team2")


def test_all_categories_of_a_job_cost() -> None:
    spend = JobSpend(useful_usd=1.0, resize_usd=0.2, lost_usd=0.03, unknown_usd=0.004)
    assert spend.usd == pytest.approx(1.234)
    assert JobSpend().usd == 0


@settings(max_examples=40)
@given(DOLLARS, st.floats(0, 1e3), st.floats(0, 1e9))
def test_what_a_job_will_cost_is_never_less_than_what_it_has_cost(
    spent: float, rate: float, time_left_s: float
) -> None:
    expected = expected_usd(spent, rate, time_left_s)
    faster = expected_usd(spent, rate, time_left_s / 2)
    assert expected is not None
    assert faster is not None
    assert spent <= faster <= expected
    assert expected_usd(spent, rate, 0.0) == spent
