"""How budgets stand, from what the ledger has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from service.domain.rental.budgets import Budget, Standing, counts_from, standing
from service.usecases.money_ports import Budgets, MoneyQueries


async def standings(
    budgets: Budgets, queries: MoneyQueries, now: datetime, wanted: Callable[[Budget], bool] = lambda _: True
) -> list[tuple[Budget, Standing]]:
    """The budgets that are wanted, each with how it stands."""
    found = [one for one in await budgets.all() if wanted(one)]
    if not found:
        return []
    usd_per_h = await queries.usd_per_h_now()
    spent: dict[tuple[datetime, str | None], float] = {}
    for one in found:
        key = (counts_from(one, now), one.project)
        if key not in spent:
            spent[key] = await queries.spent_usd(key[0], project=one.project)
    return [
        (
            one,
            standing(
                one,
                spent_usd=spent[counts_from(one, now), one.project],
                usd_per_h=usd_per_h.get(one.project, 0.0),
                now=now,
            ),
        )
        for one in found
    ]
