"""Budgets: how they stand, what they forbid, and when to say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headway.contract.dollars import dollars
from headway.contract.money import BudgetKind, Period, Scope
from service.domain.cluster import Cap

NOTICE_AT = (0.8, 1.0)
"""Shares of a budget at which it is told of."""
_NOTHING_USD = 1e-6
"""Less is no money."""
SLACK = 1e-9
"""Of a budget: sums of dollars are not compared more exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """An amount of dollars. `usd` is per hour, but for a PERIOD, where it is for the whole period."""

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
    """Dollars of a job by category. `unpriced`: some of its slots had no price."""

    useful_usd: float = 0.0
    resize_usd: float = 0.0
    lost_usd: float = 0.0
    unpriced: bool = False

    @property
    def usd(self) -> float:
        """All of it."""
        return self.useful_usd + self.resize_usd + self.lost_usd


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands at a moment. Dollars, and dollars per hour."""

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
    """Of the budget that is used up; of an hourly cap and an average, of the dollars per hour. 0 dollars are all used."""
    message: str


def period_of(period: Period, now: datetime) -> tuple[datetime, datetime]:
    """Begin and end of the period that a moment is in, in UTC."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.DAY:
        return midnight, midnight + timedelta(days=1)
    if period is Period.WEEK:
        monday = midnight - timedelta(days=midnight.weekday())
        return monday, monday + timedelta(days=7)
    first = midnight.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def counts_from(budget: Budget, now: datetime) -> datetime:
    """Since when spending counts for a budget: the hour in which it was changed last, or the start of the period."""
    if budget.period is not None:
        return period_of(budget.period, now)[0]
    return budget.updated_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def standing(budget: Budget, *, spent_usd: float, usd_per_h: float, now: datetime) -> Standing:
    """How a budget stands: `spent_usd` since `counts_from`, and `usd_per_h` being spent at the moment."""
    begin = counts_from(budget, now)
    hours = max((now - begin).total_seconds() / 3600, 0.0)
    average = spent_usd / hours if hours > 0 else 0.0
    if budget.period is not None:
        return _of_period(budget, spent_usd, usd_per_h, average, now)
    measured = usd_per_h if budget.kind is BudgetKind.HOURLY_CAP else average
    over = measured > budget.usd * (1 + SLACK)
    what = "now" if budget.kind is BudgetKind.HOURLY_CAP else "on average"
    return Standing(
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
        message=f"{dollars(measured)} of {dollars(budget.usd)} an hour {what}"
        + (", which is more" if over else ""),
    )


def _of_period(budget: Budget, spent: float, usd_per_h: float, average: float, now: datetime) -> Standing:
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
        held = "jobs wait until" if budget.hard else "it begins anew on"
        message += f": nothing is left; {held} {end:%Y-%m-%d %H:%M} UTC, or until it is raised"
    elif ends_at is not None:
        message += f"; used up by {ends_at:%Y-%m-%d %H:%M} UTC if it goes on like this"
    else:
        message += f"; about {dollars(forecast)} by its end"
    return Standing(
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


def caps_of(standings: Sequence[tuple[Budget, Standing]]) -> tuple[Cap, ...]:
    """What hard budgets forbid from now on: more than an hourly cap, and anything once a period's money is spent."""
    caps = []
    for budget, stands in standings:
        if not budget.hard:
            continue
        if budget.kind is BudgetKind.HOURLY_CAP:
            caps.append(Cap(budget.name, budget.project, budget.usd))
        elif budget.kind is BudgetKind.PERIOD and stands.exhausted:
            caps.append(Cap(budget.name, budget.project, 0.0))
    return tuple(caps)


def subject_of_budget(name: str) -> str:
    """The name under which it is kept what was told of a budget."""
    return f"budget/{name}"


def notice_due(share: float, since: datetime, told: tuple[datetime, float] | None) -> float | None:
    """The share that is to be told of now; None where nothing new is to be said. Each is told once in a period; money that
    was added makes room for it to be told of again.
    """
    if not math.isfinite(share):
        return None
    reached = max((one for one in NOTICE_AT if share >= one * (1 - SLACK)), default=0.0)
    before = told[1] if told is not None and told[0] == since else 0.0
    return reached if reached != before else None


def expected_usd(
    spent_usd: float,
    usd_per_h: float | None,
    *,
    samples: int,
    total_samples: int | None,
    samples_per_s: float | None,
) -> float | None:
    """Dollars of a job in all, if it goes on at this speed and price. None where speed, end or price are not known, as of a
    job that waits.
    """
    if usd_per_h is None or total_samples is None or not samples_per_s or not math.isfinite(samples_per_s):
        return None
    left_s = max(0, total_samples - samples) / samples_per_s
    return spent_usd + usd_per_h * left_s / 3600
