"""Client methods about the cluster and its scheduling rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway._lazy import lazy
from headway.client.calls import Calls
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import decisions
else:
    decisions = lazy("headway.contract.views.decisions")


class ClusterCalls(Calls):
    """Methods about the cluster, its policy and its rounds."""

    def cluster(self) -> decisions.ClusterView:
        """Return the slots by device kind, the jobs by state, the present policy and the available policies."""
        return self._get("/api/v1/cluster", decisions.ClusterView)

    def set_policy(
        self, policy: str, parameters: Mapping[str, decisions.ParameterValue] | None = None
    ) -> decisions.ClusterView:
        """Set the scheduling policy from the next round on, with `parameters` in place of its defaults."""
        request = decisions.PolicyRequest(policy=policy, parameters=dict(parameters or {}))
        answer = self._http.request("PUT", "/api/v1/cluster", json=request.model_dump())
        return decisions.ClusterView.model_validate_json(answer.content)

    def rounds(self) -> Iterator[decisions.RoundView]:
        """Yield the rounds that changed something and the latest round, newest first."""
        return self._pages("/api/v1/rounds", Page[decisions.RoundView], {})

    def round(self, round_id: str = "latest") -> decisions.RoundView:
        """Return one round by its id, or the latest."""
        return self._get(f"/api/v1/rounds/{quote(round_id, safe='')}", decisions.RoundView)
