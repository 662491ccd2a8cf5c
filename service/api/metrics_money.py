"""What monitoring reads of money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.contract.money import Category, Period
from service.domain.rental.budgets import Budget, Standing, period_of
from service.usecases.ports import Transaction
from service.usecases.standing import standings


@dataclass(frozen=True, slots=True)
class MoneyFigures:
    """Dollars by project, market and category, and slot-seconds by what became of them and lost by cause, of this month; and how
    budgets stand.
    """

    spend_usd: Mapping[tuple[str, str, str], float]
    slot_s: Mapping[Category, float]
    lost_slot_s: Mapping[str, float]
    budgets: Sequence[tuple[Budget, Standing]]


async def money_figures(tx: Transaction, now: datetime) -> MoneyFigures:
    """The figures as they are now."""
    month, _ = period_of(Period.MONTH, now)
    return MoneyFigures(
        spend_usd=await tx.money_queries.spend_by_label(month),
        slot_s=await tx.money_queries.slot_s(month),
        lost_slot_s=await tx.money_queries.lost_slot_s(month),
        budgets=await standings(tx.budgets, tx.money_queries, now),
    )


class Money(Collector):
    """Counters begin anew with every month, as monitoring expects of counters that it sees fall."""

    def __init__(self, figures: MoneyFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus's client asks for them."""
        spend = CounterMetricFamily(
            "headway_spend_dollars",
            "Dollars of this month, by who had the slots and what became of them; no project: idle.",
            labels=("project", "market", "category"),
        )
        for labels, usd in self._figures.spend_usd.items():
            spend.add_metric(labels, usd)
        yield spend
        lost = CounterMetricFamily(
            "headway_lost_gpu_seconds",
            "Slot-seconds of this month in which training was done that had to be done again, or a failure was got over.",
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
            "Slot-seconds of this month, by what became of them.",
            labels=("category",),
        )
        for category in Category:
            slots.add_metric((category,), self._figures.slot_s.get(category, 0.0))
        yield slots
        held = sum(
            seconds for category, seconds in self._figures.slot_s.items() if category is not Category.IDLE
        )
        yield GaugeMetricFamily(
            "headway_goodput_ratio",
            "Share of this month's slot-seconds with a job in which training was done that counts; 1 before the first.",
            value=self._figures.slot_s.get(Category.USEFUL, 0.0) / held if held else 1.0,
        )

    def _budgets(self) -> Iterator[Metric]:
        remaining = GaugeMetricFamily(
            "headway_budget_remaining_dollars",
            "Of a budget for a period, until its end; of the others, of the dollars per hour.",
            labels=("budget",),
        )
        share = GaugeMetricFamily(
            "headway_budget_used_ratio",
            "Share of a budget that is used; above 1 it is over.",
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
