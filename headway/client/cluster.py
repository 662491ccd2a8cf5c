"""Client methods about the cluster: policy, scheduling rounds, nodes and rented machines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, api_path, job_path
from headway.contract.views.jobs import JobView, Page

if TYPE_CHECKING:
    from headway.contract import health
    from headway.contract.views import decisions
    from headway.contract.views import hosts as host_models
    from headway.contract.views import machines as machine_models
    from headway.contract.views import nodes as node_models
else:
    decisions = lazy("headway.contract.views.decisions")
    health = lazy("headway.contract.health")
    host_models = lazy("headway.contract.views.hosts")
    machine_models = lazy("headway.contract.views.machines")
    node_models = lazy("headway.contract.views.nodes")


class ClusterCalls(Calls):
    """Methods about the cluster, its policy and rounds, its nodes and rented machines."""

    def cluster(self) -> decisions.ClusterView:
        """Return the slots by device kind, the jobs by state, the present policy and the available policies."""
        return self._get(api_path("cluster"), decisions.ClusterView)

    def set_policy(
        self, policy: str, parameters: Mapping[str, decisions.ParameterValue] | None = None
    ) -> decisions.ClusterView:
        """Set the scheduling policy from the next round on, with `parameters` in place of its defaults."""
        request = decisions.PolicyRequest(policy=policy, parameters=dict(parameters or {}))
        return self._send("PUT", api_path("cluster"), decisions.ClusterView, json=request.model_dump())

    def rounds(self) -> Iterator[decisions.RoundView]:
        """Yield the rounds that changed something and the latest round, newest first."""
        return self._pages(api_path("rounds"), Page[decisions.RoundView])

    def round(self, round_id: str = "latest") -> decisions.RoundView:
        """Return one round by its id, or the latest."""
        return self._get(api_path("rounds", round_id), decisions.RoundView)

    def nodes(self) -> Iterator[node_models.NodeView]:
        """Yield the nodes, with the holders of their slots."""
        return self._pages(api_path("nodes"), Page[node_models.NodeView])

    def hosts(self) -> host_models.HostsView:
        """Return the hosts, and the connections between them that fail or are slow."""
        return self._get(api_path("hosts"), host_models.HostsView)

    def machines(self, *, open_only: bool = False) -> Iterator[machine_models.MachineView]:
        """Yield rented machines, newest first. `open_only` leaves out ended machines."""
        params = {"open": "true" if open_only else None}
        return self._pages(api_path("machines"), Page[machine_models.MachineView], params)

    def lease(
        self, job: str | JobView, request: machine_models.LeaseRequest, *, idempotency_key: str | None = None
    ) -> Page[machine_models.MachineView]:
        """Lease the machines of a plan for a job, until the job ends. Repeated calls with the same key lease once."""
        key = idempotency_key or str(uuid.uuid4())
        return self._post(
            job_path(job, "machines"),
            Page[machine_models.MachineView],
            json=request.model_dump(mode="json"),
            headers={"Idempotency-Key": key},
        )

    def drain(self, node: str) -> node_models.NodeView:
        """Move a node's jobs away after a checkpoint, and schedule no new jobs on it."""
        return self._post(api_path("nodes", node, "drain"), node_models.NodeView)

    def cordon(self, node: str) -> node_models.NodeView:
        """Schedule no new jobs on a node. Its present jobs stay."""
        return self._post(api_path("nodes", node, "cordon"), node_models.NodeView)

    def uncordon(self, node: str) -> node_models.NodeView:
        """Schedule jobs on a cordoned or drained node again."""
        return self._post(api_path("nodes", node, "uncordon"), node_models.NodeView)

    def quarantine(self, node: str, slot: int, *, why: str = "") -> node_models.NodeView:
        """Schedule no jobs on a slot until it is released. A job that holds it moves away."""
        body = health.QuarantineRequest(why=why).model_dump()
        path = api_path("nodes", node, "slots", slot, "quarantine")
        return self._post(path, node_models.NodeView, json=body)

    def release(self, node: str, slot: int) -> node_models.NodeView:
        """Schedule jobs on a slot again, whatever the reason for its quarantine."""
        return self._post(api_path("nodes", node, "slots", slot, "release"), node_models.NodeView)
