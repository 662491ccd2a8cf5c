"""Client methods about budgets and usage."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway._lazy import lazy
from headway.contract.views.jobs import Page
from headway.http import Http

if TYPE_CHECKING:
    from headway.contract.views import money
else:
    money = lazy("headway.contract.views.money")

_BUDGETS = "/api/v1/budgets"
_USAGE = "/api/v1/usage"


class MoneyCalls:
    """Methods about budgets and usage."""

    _http: Http

    def budgets(self) -> list[money.BudgetView]:
        """Return all budgets with their spending."""
        return Page[money.BudgetView].model_validate_json(self._http.request("GET", _BUDGETS).content).items

    def set_budget(
        self, name: str, wanted: money.BudgetRequest, *, if_version: int | None = None
    ) -> money.BudgetView:
        """Set a budget, and return it.

        With `if_version`, the service refuses if the budget has changed since.
        """
        headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
        answer = self._http.request(
            "PUT", f"{_BUDGETS}/{quote(name, safe='')}", json=wanted.model_dump(mode="json"), headers=headers
        )
        return money.BudgetView.model_validate_json(answer.content)

    def delete_budget(self, name: str) -> None:
        """Remove a budget by its name."""
        self._http.request("DELETE", f"{_BUDGETS}/{quote(name, safe='')}")

    def usage(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: money.GroupBy | None = None,
        project: str | None = None,
    ) -> money.UsageView:
        """Return the spending between two times, in groups.

        Args:
            since: start, at a whole hour; None: the start of the month.
            until: end; None: now.
            by: grouping; None: by project.
            project: only this project; None: all projects.
        """
        group = by or money.GroupBy.PROJECT
        query = {**_times(since, until), "group_by": group.value, **({"project": project} if project else {})}
        return money.UsageView.model_validate_json(self._http.request("GET", _USAGE, params=query).content)

    def machine_bills(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[money.LeaseBill]:
        """Return the leases of rented machines in a period, as billed and as charged."""
        answer = self._http.request("GET", f"{_USAGE}/machines", params=_times(since, until))
        return Page[money.LeaseBill].model_validate_json(answer.content).items


def _times(since: datetime | None, until: datetime | None) -> dict[str, str]:
    return {name: at.isoformat() for name, at in (("from", since), ("to", until)) if at is not None}
