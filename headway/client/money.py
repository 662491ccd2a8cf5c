"""Client methods about budgets and usage."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, api_path
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import money
else:
    money = lazy("headway.contract.views.money")


class MoneyCalls(Calls):
    """Methods about budgets and usage."""

    def budgets(self) -> list[money.BudgetView]:
        """Return all budgets with their spending."""
        return self._get(api_path("budgets"), Page[money.BudgetView]).items

    def set_budget(
        self, name: str, wanted: money.BudgetRequest, *, if_version: int | None = None
    ) -> money.BudgetView:
        """Set a budget, and return it.

        With `if_version`, the service refuses if the budget has changed since.
        """
        headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
        body = wanted.model_dump(mode="json")
        return self._send("PUT", api_path("budgets", name), money.BudgetView, json=body, headers=headers)

    def delete_budget(self, name: str) -> None:
        """Remove a budget by its name."""
        self._delete(api_path("budgets", name))

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
        params = {**_times(since, until), "group_by": group.value, "project": project or None}
        return self._get(api_path("usage"), money.UsageView, **params)

    def machine_bills(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[money.LeaseBill]:
        """Return the leases of rented machines in a period, as billed and as charged."""
        return self._get(api_path("usage", "machines"), Page[money.LeaseBill], **_times(since, until)).items


def _times(since: datetime | None, until: datetime | None) -> dict[str, str]:
    return {name: at.isoformat() for name, at in (("from", since), ("to", until)) if at is not None}
