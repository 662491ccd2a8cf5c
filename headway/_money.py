"""The client's methods about money."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from headway._http import Http
from headway.contract.jobs import Page
from headway.contract.money import BudgetRequest, BudgetView, GroupBy, LeaseBill, UsageView

_BUDGETS = "/api/v1/budgets"
_USAGE = "/api/v1/usage"


class MoneyCalls:
    """Budgets and usage, over the connection of the client."""

    _http: Http

    def budgets(self) -> list[BudgetView]:
        """Every budget and how it stands."""
        return Page[BudgetView].model_validate_json(self._http.request("GET", _BUDGETS).content).items

    def set_budget(self, name: str, wanted: BudgetRequest, *, if_version: int | None = None) -> BudgetView:
        """Set a budget; with `if_version` only if nobody has changed it since that version."""
        headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
        answer = self._http.request(
            "PUT", f"{_BUDGETS}/{quote(name, safe='')}", json=wanted.model_dump(mode="json"), headers=headers
        )
        return BudgetView.model_validate_json(answer.content)

    def delete_budget(self, name: str) -> None:
        """Remove a budget."""
        self._http.request("DELETE", f"{_BUDGETS}/{quote(name, safe='')}")

    def usage(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: GroupBy = GroupBy.PROJECT,
        project: str | None = None,
    ) -> UsageView:
        """What was spent from an hour (None: the beginning of the month) until a moment (None: now), by group."""
        query = {**_times(since, until), "group_by": by.value, **({"project": project} if project else {})}
        return UsageView.model_validate_json(self._http.request("GET", _USAGE, params=query).content)

    def machine_bills(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[LeaseBill]:
        """Leases of rented machines in a time, as they are billed and as they were charged."""
        answer = self._http.request("GET", f"{_USAGE}/machines", params=_times(since, until))
        return Page[LeaseBill].model_validate_json(answer.content).items


def _times(since: datetime | None, until: datetime | None) -> dict[str, str]:
    return {name: at.isoformat() for name, at in (("from", since), ("to", until)) if at is not None}
