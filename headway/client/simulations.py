"""Client methods about what-if simulations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, api_path
from headway.contract.views.jobs import Page
from headway.http import Timer

if TYPE_CHECKING:
    from headway.contract.views import simulations as simulation_models
else:
    simulation_models = lazy("headway.contract.views.simulations")


class SimulationCalls(Calls):
    """Methods about what-if simulations of the cluster."""

    _timer: Timer

    def simulate(
        self, request: simulation_models.SimulationRequest, *, idempotency_key: str | None = None
    ) -> simulation_models.SimulationView:
        """Start a simulation of the cluster with changes. `wait_simulation` waits for its result."""
        body = request.model_dump(mode="json", by_alias=True)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._post(
            api_path("simulations"), simulation_models.SimulationView, json=body, headers=headers
        )

    def simulations(self) -> Iterator[simulation_models.SimulationView]:
        """Yield simulations without their results, newest first, fetching pages on demand."""
        return self._pages(api_path("simulations"), Page[simulation_models.SimulationView])

    def simulation(self, simulation_id: str) -> simulation_models.SimulationView:
        """Return one simulation, with its result once it has one."""
        return self._get(api_path("simulations", simulation_id), simulation_models.SimulationView)

    def cancel_simulation(self, simulation_id: str) -> simulation_models.SimulationView:
        """Cancel a simulation, which then ends without a result."""
        return self._post(api_path("simulations", simulation_id, "cancel"), simulation_models.SimulationView)

    def wait_simulation(
        self, simulation_id: str, *, every_s: float = 0.5
    ) -> Iterator[simulation_models.SimulationView]:
        """Yield the simulation now and then every `every_s` seconds, for the last time when it has ended."""
        while True:
            view = self.simulation(simulation_id)
            yield view
            if view.status in simulation_models.ENDED:
                return
            self._timer.sleep(every_s)
