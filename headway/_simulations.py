"""The client's methods about what-if simulations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import quote

from headway._calls import Calls
from headway._http import Timer
from headway.contract.jobs import Page
from headway.contract.simulations import ENDED, SimulationRequest, SimulationView

_API = "/api/v1"


class SimulationCalls(Calls):
    """What would come of the cluster with changes, over the connection of the client."""

    _timer: Timer

    def simulate(self, request: SimulationRequest, *, idempotency_key: str | None = None) -> SimulationView:
        """Ask what would come of the cluster with changes. The answer is ready later: see `wait_simulation`."""
        body = request.model_dump(mode="json", by_alias=True)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._post(f"{_API}/simulations", SimulationView, json=body, headers=headers)

    def simulations(self) -> Iterator[SimulationView]:
        """Simulations without their results, newest first, page by page as they are consumed."""
        return self._pages(f"{_API}/simulations", Page[SimulationView], {})

    def simulation(self, simulation_id: str) -> SimulationView:
        """One simulation, with its result once there is one."""
        return self._get(_simulation(simulation_id), SimulationView)

    def cancel_simulation(self, simulation_id: str) -> SimulationView:
        """Have a simulation end without a result."""
        return self._post(_simulation(simulation_id, "cancel"), SimulationView)

    def wait_simulation(self, simulation_id: str, *, every_s: float = 0.5) -> Iterator[SimulationView]:
        """The simulation as it is now and then every `every_s`, the last time when it has ended."""
        while True:
            view = self.simulation(simulation_id)
            yield view
            if view.status in ENDED:
                return
            self._timer.sleep(every_s)


def _simulation(simulation_id: str, *rest: str) -> str:
    return "/".join((f"{_API}/simulations/{quote(simulation_id, safe='')}", *rest))
