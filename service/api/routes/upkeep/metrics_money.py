"""Metrics of spending and budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.contract.views.money import Category, Period
from service.domain.rental.budgets import Budget, BudgetUsage, period_of
from service.usecases.money.budget_state import standings
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
        budgets=await standings(tx.spending, now),
    )


class Money(Collector):
    """Counters of the month and gauges of budgets.

    Counters restart every month, which monitoring sees as a reset.
    """

    def __init__(self, figures: MoneyFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus's client."""
        spend = CounterMetricFamily(
            "headway_spend_dollars",
            "Dollars of this month, by project, market and category; an empty project means idle slots.",
            labels=("project", "market", "category"),
        )
        for labels, usd in self._figures.spend_usd.items():
            spend.add_metric(labels, usd)
        yield spend
        lost = CounterMetricFamily(
            "headway_lost_gpu_seconds",
            "Slot-seconds of this month lost to repeated training or to recovery from failures.",
            labels=("cause",),
        )
        for cause, seconds in self._figures.lost_slot_s.items():
            lost.add_metric((cause,), seconds)
        yield lost
        yield from self._goodput()
        yield from self._budgets()

    def _goodput(self) -> Iterator[Metric]:
        slots = CounterMetricFamily(
            "headway_slot_seconds",
            "Slot-seconds of this month, by category.",
            labels=("category",),
        )
        for category in Category:
            slots.add_metric((category,), self._figures.slot_s.get(category, 0.0))
        yield slots
        held = sum(
            seconds
            for category, seconds in self._figures.slot_s.items()
            if category not in {Category.IDLE, Category.UNKNOWN}
        )
        yield GaugeMetricFamily(
            "headway_goodput_ratio",
            "Useful share of this month's slot-seconds of jobs with known progress; 1 if there are none.",
            value=self._figures.slot_s.get(Category.USEFUL, 0.0) / held if held else 1.0,
        )

    def _budgets(self) -> Iterator[Metric]:
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
        for budget, stands in self._figures.budgets:
            left = stands.remaining_usd
            remaining.add_metric(
                (budget.name,), left if left is not None else budget.usd * (1 - stands.share)
            )
            share.add_metric((budget.name,), stands.share)
        yield remaining
        yield share
