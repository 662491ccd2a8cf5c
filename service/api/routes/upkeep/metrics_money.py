"""Metrics of spending and budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway.contract.views.money import Category, Period
from service.domain.rental.budgets import Budget, BudgetUsage, period_of
from service.usecases.money.budget_state import budget_usages
from service.usecases.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class MoneyFigures:
    """Spending and slot use of this month, and the state of budgets.

    Dollars are by project, market and category, slot-seconds by category, and lost slot-seconds by cause.
    """

    spend_usd: Mapping[tuple[str, str, str], float]
    slot_s: Mapping[Category, float]
    lost_slot_s: Mapping[str, float]
    budgets: Sequence[tuple[Budget, BudgetUsage]]


async def money_figures(tx: Transaction, now: datetime) -> MoneyFigures:
    """Return the present figures of this month."""
    month, _ = period_of(Period.MONTH, now)
    return MoneyFigures(
        spend_usd=await tx.spending.spend_by_label(month),
        slot_s=await tx.spending.slot_s(month),
        lost_slot_s=await tx.spending.lost_slot_s(month),
        budgets=await budget_usages(tx.spending, now),
    )


def money_metrics(figures: MoneyFigures) -> Iterator[Metric]:
    """Yield counters of the month and gauges of budgets.

    Counters restart every month, which monitoring sees as a reset.
    """
    spend = CounterMetricFamily(
        "headway_spend_dollars",
        "Dollars of this month, by project, market and category; an empty project means idle slots.",
        labels=("project", "market", "category"),
    )
    for labels, usd in figures.spend_usd.items():
        spend.add_metric(labels, usd)
    yield spend
    lost = CounterMetricFamily(
        "headway_lost_gpu_seconds",
        "Slot-seconds of this month lost to repeated training or to recovery from failures.",
        labels=("cause",),
    )
    for cause, seconds in figures.lost_slot_s.items():
        lost.add_metric((cause,), seconds)
    yield lost
    yield from _goodput(figures.slot_s)
    yield from _budgets(figures.budgets)


def _goodput(slot_s: Mapping[Category, float]) -> Iterator[Metric]:
    slots = CounterMetricFamily(
        "headway_slot_seconds",
        "Slot-seconds of this month, by category.",
        labels=("category",),
    )
    for category in Category:
        slots.add_metric((category,), slot_s.get(category, 0.0))
    yield slots
    not_held = {Category.IDLE, Category.UNKNOWN}
    held_s = sum(seconds for category, seconds in slot_s.items() if category not in not_held)
    yield GaugeMetricFamily(
        "headway_goodput_ratio",
        "Useful share of this month's slot-seconds of jobs with known progress; 1 if there are none.",
        value=slot_s.get(Category.USEFUL, 0.0) / held_s if held_s else 1.0,
    )


def _budgets(budgets: Sequence[tuple[Budget, BudgetUsage]]) -> Iterator[Metric]:
    remaining = GaugeMetricFamily(
        "headway_budget_remaining_dollars",
        "Dollars left: of a period's budget until its end, of other budgets per hour.",
        labels=("budget",),
    )
    share = GaugeMetricFamily(
        "headway_budget_used_ratio",
        "Used share of a budget; above 1 it is exceeded.",
        labels=("budget",),
    )
    for budget, usage in budgets:
        left = usage.remaining_usd
        remaining.add_metric((budget.name,), left if left is not None else budget.usd * (1 - usage.share))
        share.add_metric((budget.name,), usage.share)
    yield remaining
    yield share
