"""Client methods about nodes and rented machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway._lazy import lazy
from headway.client.calls import Calls
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract import health
    from headway.contract.views import machines as machine_models
    from headway.contract.views import nodes as node_models
else:
    health = lazy("headway.contract.health")
    machine_models = lazy("headway.contract.views.machines")
    node_models = lazy("headway.contract.views.nodes")


class NodeCalls(Calls):
    """Methods about nodes, their slots and rented machines."""

    def nodes(self) -> Iterator[node_models.NodeView]:
        """Yield the nodes, with the holders of their slots."""
        return self._pages("/api/v1/nodes", Page[node_models.NodeView], {})

    def machines(self, *, open_only: bool = False) -> Iterator[machine_models.MachineView]:
        """Yield rented machines, newest first. `open_only` leaves out ended machines."""
        return self._pages(
            "/api/v1/machines", Page[machine_models.MachineView], {"open": "true" if open_only else None}
        )

    def drain(self, node: str) -> node_models.NodeView:
        """Move a node's jobs away after a checkpoint, and schedule no new jobs on it."""
        return self._post(f"/api/v1/nodes/{quote(node, safe='')}/drain", node_models.NodeView)

    def cordon(self, node: str) -> node_models.NodeView:
        """Schedule no new jobs on a node. Its present jobs stay."""
        return self._post(f"/api/v1/nodes/{quote(node, safe='')}/cordon", node_models.NodeView)

    def uncordon(self, node: str) -> node_models.NodeView:
        """Schedule jobs on a cordoned or drained node again."""
        return self._post(f"/api/v1/nodes/{quote(node, safe='')}/uncordon", node_models.NodeView)

    def quarantine(self, node: str, slot: int, *, why: str = "") -> node_models.NodeView:
        """Schedule no jobs on a slot until it is released. A job that holds it moves away."""
        body = health.QuarantineRequest(why=why).model_dump()
        return self._post(
            f"/api/v1/nodes/{quote(node, safe='')}/slots/{slot}/quarantine", node_models.NodeView, json=body
        )

    def release(self, node: str, slot: int) -> node_models.NodeView:
        """Schedule jobs on a slot again, whatever the reason for its quarantine."""
        return self._post(f"/api/v1/nodes/{quote(node, safe='')}/slots/{slot}/release", node_models.NodeView)
