"""Budgets: their usage, the caps that they impose, and the times of their notices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headway.contract.values.dollars import dollars
from headway.contract.views.money import BudgetKind, Period, Scope
from service.domain.cluster.snapshot import Cap

NOTICE_AT = (0.8, 1.0)
"""Shares of a budget at which a notice is sent."""
_NOTHING_USD = 1e-6
"""Largest amount in dollars that counts as no money."""
SLACK = 1e-9
"""Relative tolerance in comparisons of sums of dollars with a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Amount of dollars. `usd` is per hour, except for a PERIOD budget, where it is for the whole period."""

    name: str
    scope: Scope
    project: str | None
    kind: BudgetKind
    usd: float
    period: Period | None
    hard: bool
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class JobSpend:
    """Dollars of a job by category. `unpriced` is true if some of its slots had no price."""

    useful_usd: float = 0.0
    resize_usd: float = 0.0
    lost_usd: float = 0.0
    unpriced: bool = False
    unknown_usd: float = 0.0

    @property
    def usd(self) -> float:
        """Sum of all categories in dollars."""
        return self.useful_usd + self.unknown_usd + self.resize_usd + self.lost_usd


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """Usage of a budget at a moment, in dollars and dollars per hour."""

    period_from: datetime
    period_to: datetime | None
    spent_usd: float
    remaining_usd: float | None
    usd_per_h: float
    average_usd_per_h: float
    forecast_usd: float | None
    exhausted_at: datetime | None
    exhausted: bool
    over: bool
    share: float
    """Share of the budget that is used. For an hourly cap and an average it is the share of the dollars per hour.

    A budget of 0 dollars is always used up.
    """
    message: str


def period_of(period: Period, now: datetime) -> tuple[datetime, datetime]:
    """Return the begin and the end, in UTC, of the period that contains a moment."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.DAY:
        return midnight, midnight + timedelta(days=1)
    if period is Period.WEEK:
        monday = midnight - timedelta(days=midnight.weekday())
        return monday, monday + timedelta(days=7)
    first = midnight.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def counts_from(budget: Budget, now: datetime) -> datetime:
    """Return the time from which spending counts: the start of the period, or the hour of the budget's last change."""
    if budget.period is not None:
        return period_of(budget.period, now)[0]
    return budget.updated_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def usage_of(budget: Budget, *, spent_usd: float, usd_per_h: float, now: datetime) -> BudgetUsage:
    """Return the usage of a budget: `spent_usd` since `counts_from`, and `usd_per_h` being spent at the moment."""
    begin = counts_from(budget, now)
    hours = max((now - begin).total_seconds() / 3600, 0.0)
    average = spent_usd / hours if hours > 0 else 0.0
    if budget.period is not None:
        return _of_period(budget, spent_usd, usd_per_h, average, now)
    measured = usd_per_h if budget.kind is BudgetKind.HOURLY_CAP else average
    over = measured > budget.usd * (1 + SLACK)
    when = "now" if budget.kind is BudgetKind.HOURLY_CAP else "on average"
    excess = ", which is over the budget" if over else ""
    return BudgetUsage(
        period_from=begin,
        period_to=None,
        spent_usd=spent_usd,
        remaining_usd=None,
        usd_per_h=usd_per_h,
        average_usd_per_h=average,
        forecast_usd=None,
        exhausted_at=None,
        exhausted=False,
        over=over,
        share=_share(measured, budget.usd),
        message=f"{dollars(measured)} of {dollars(budget.usd)} an hour {when}{excess}",
    )


def _of_period(budget: Budget, spent: float, usd_per_h: float, average: float, now: datetime) -> BudgetUsage:
    assert budget.period is not None
    begin, end = period_of(budget.period, now)
    left_h = (end - now).total_seconds() / 3600
    exhausted = spent >= budget.usd * (1 - SLACK)
    remaining = max(0.0, budget.usd - spent)
    ends_at = None
    if exhausted:
        ends_at = now
    elif usd_per_h > 0 and remaining / usd_per_h < left_h:
        ends_at = now + timedelta(hours=remaining / usd_per_h)
    forecast = spent + usd_per_h * left_h
    message = f"{dollars(spent)} of {dollars(budget.usd)} this {budget.period}"
    if exhausted:
        held = "jobs wait until" if budget.hard else "the next period begins on"
        message += f": it is used up; {held} {end:%Y-%m-%d %H:%M} UTC, or raise the budget"
    elif ends_at is not None:
        message += f"; used up by {ends_at:%Y-%m-%d %H:%M} UTC at the present rate"
    else:
        message += f"; about {dollars(forecast)} expected by its end"
    return BudgetUsage(
        period_from=begin,
        period_to=end,
        spent_usd=spent,
        remaining_usd=remaining,
        usd_per_h=usd_per_h,
        average_usd_per_h=average,
        forecast_usd=forecast,
        exhausted_at=ends_at,
        exhausted=exhausted,
        over=spent > budget.usd * (1 + SLACK),
        share=_share(spent, budget.usd),
        message=message,
    )


def _share(used: float, usd: float) -> float:
    return used / usd if usd > _NOTHING_USD else 1.0


def caps_of(usages: Sequence[tuple[Budget, BudgetUsage]]) -> tuple[Cap, ...]:
    """Return the caps of hard budgets: an hourly cap at its amount, and 0 for a period whose budget is exhausted."""
    caps = []
    for budget, usage in usages:
        if budget.hard and budget.kind is BudgetKind.HOURLY_CAP:
            caps.append(Cap(budget.name, budget.project, budget.usd))
        elif budget.hard and budget.kind is BudgetKind.PERIOD and usage.exhausted:
            caps.append(Cap(budget.name, budget.project, 0.0))
    return tuple(caps)


def subject_of_budget(name: str) -> str:
    """Return the subject under which the notices of a budget are stored."""
    return f"budget/{name}"


def notice_due(share: float, since: datetime, last: tuple[datetime, float] | None) -> float | None:
    """Return the share of `NOTICE_AT` to announce now (0 if the usage fell below all of them), or None if nothing changed.

    `since` is the start of the period, and `last` the period and share of the last notice. Each share is
    announced once in a period. After the budget is raised, it can be announced again.
    """
    if not math.isfinite(share):
        return None
    reached = max((one for one in NOTICE_AT if share >= one * (1 - SLACK)), default=0.0)
    before = last[1] if last is not None and last[0] == since else 0.0
    return reached if reached != before else None


def expected_usd(
    spent_usd: float,
    usd_per_h: float | None,
    time_left_s: float | None,
) -> float | None:
    """Return the total dollars of a job if it continues at this speed and price.

    Return None if the time to its end or the price is unknown, as for a waiting job.
    """
    if usd_per_h is None or time_left_s is None or not math.isfinite(time_left_s):
        return None
    return spent_usd + usd_per_h * time_left_s / 3600
