"""What what-if simulations need of the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from headway.contract.jobs import Page
from headway.contract.simulations import (
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
    SimulationView,
)
from service.domain.cluster import Snapshot
from service.usecases.records import AskedSimulation, TakenSimulation

Wanted: TypeAlias = Callable[[float], Awaitable[bool]]
"""Told how far something is, from 0 to 1, it says whether to go on."""


class Simulations(Protocol):
    """What-if simulations, stored until they are old."""

    async def insert(
        self,
        simulation_id: str,
        request: SimulationRequest,
        *,
        seen: frozenset[str] | None,
        idempotency_key: str | None,
        request_digest: str,
        now: datetime,
    ) -> AskedSimulation:
        """Store a question of somebody who has `seen` some projects (None: all); the one stored before under the same
        idempotency key.
        """
        ...

    async def get(self, simulation_id: str, *, seen: frozenset[str] | None) -> SimulationView:
        """A simulation with its result, if whoever asked had seen no other projects. Raises NotFound."""
        ...

    async def page(
        self, *, limit: int, cursor: str | None, seen: frozenset[str] | None
    ) -> Page[SimulationView]:
        """Simulations without results, likewise, newest first."""
        ...

    async def take(self, now: datetime) -> TakenSimulation | None:
        """The oldest that has not ended, as running from now on; None when there is none. One that was running already has
        lost whoever ran it.
        """
        ...

    async def report(self, taken: TakenSimulation, progress: float) -> bool:
        """How far a run is; whether it is still wanted from whoever took it."""
        ...

    async def end(
        self,
        taken: TakenSimulation,
        status: SimulationStatus,
        message: str,
        now: datetime,
        result: SimulationResult | None = None,
    ) -> None:
        """What came of a run, unless it is not wanted any more."""
        ...

    async def cancel(self, simulation_id: str, now: datetime) -> None:
        """Have it end without a result; one that has ended stays as it is. Raises NotFound."""
        ...


class Simulator(Protocol):
    """What answers what-if questions."""

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: Wanted,
    ) -> SimulationResult:
        """The answer. `ended_samples` are what ended jobs took in samples, by class; `wanted` is called now and then with
        the part that is done. Raises SimulationEnded when there is none.
        """
        ...
