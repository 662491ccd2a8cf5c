"""The state of budgets, computed from the ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from service.domain.rental.budgets import Budget, BudgetUsage, counts_from, usage_of
from service.usecases.ports.money import Spending


async def budget_usages(
    spending: Spending, now: datetime, wanted: Callable[[Budget], bool] = lambda _: True
) -> list[tuple[Budget, BudgetUsage]]:
    """Return the selected budgets, each with its usage."""
    found = [one for one in await spending.budgets() if wanted(one)]
    if not found:
        return []
    usd_per_h = await spending.usd_per_h_now()
    spent: dict[tuple[datetime, str | None], float] = {}
    for one in found:
        key = (counts_from(one, now), one.project)
        if key not in spent:
            spent[key] = await spending.spent_usd(key[0], project=one.project)
    return [
        (
            one,
            usage_of(
                one,
                spent_usd=spent[counts_from(one, now), one.project],
                usd_per_h=usd_per_h.get(one.project, 0.0),
                now=now,
            ),
        )
        for one in found
    ]
