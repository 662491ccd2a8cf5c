"""Interfaces for what-if simulations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from headway.contract.views.jobs import Page
from headway.contract.views.simulations import (
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
    SimulationView,
)
from service.domain.cluster.snapshot import Snapshot

OnProgress: TypeAlias = Callable[[float], Awaitable[bool]]
"""A callback that takes the completed share, from 0 to 1, and returns whether to go on."""


@dataclass(frozen=True, slots=True)
class AskedSimulation:
    """Result of a request: the new simulation, or the one stored before under the same idempotency key."""

    view: SimulationView
    request_digest: str
    created: bool


@dataclass(frozen=True, slots=True)
class TakenSimulation:
    """A simulation that is to run now.

    `attempt` counts the times that the simulation was taken up, from 1. `request` is None if a version with
    another request format stored it. `seen` holds the projects that the requester could see; None means all.
    """

    id: str
    request: SimulationRequest | None
    attempt: int
    seen: frozenset[str] | None = None


class Simulations(Protocol):
    """What-if simulations, stored for a limited time."""

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
        """Store a request for a simulation, or return the one stored before under the same idempotency key.

        `seen` holds the projects that the requester can see (None: all).
        """

    async def get(self, simulation_id: str, *, seen: frozenset[str] | None) -> SimulationView:
        """Return a simulation with its result.

        Raise NotFound if there is none, or if its requester could see projects that are not in `seen` (None:
        all are).
        """

    async def page(
        self, *, limit: int, cursor: str | None, seen: frozenset[str] | None
    ) -> Page[SimulationView]:
        """Return simulations without their results, newest first, restricted to `seen` as in `get`."""

    async def take(self, now: datetime) -> TakenSimulation | None:
        """Take up the oldest simulation that has not ended and mark it as running.

        Return None if there is none. A simulation that was already marked as running has lost its process.
        """

    async def report(self, taken: TakenSimulation, progress: float) -> bool:
        """Store the progress of a run. Return False if this attempt is no longer wanted."""

    async def end(
        self,
        taken: TakenSimulation,
        status: SimulationStatus,
        message: str,
        now: datetime,
        result: SimulationResult | None = None,
    ) -> None:
        """Store the result of a run, unless the run is no longer wanted."""

    async def cancel(self, simulation_id: str, now: datetime) -> None:
        """End a simulation without a result.

        An ended simulation stays as it is. Raise NotFound if there is none.
        """


class Simulator(Protocol):
    """The engine that answers what-if requests."""

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: OnProgress,
    ) -> SimulationResult:
        """Return the result of a simulation.

        `ended_samples` are the sample counts of ended jobs, by class. `wanted` is called from time to time
        with the completed share.

        Raises:
            SimulationEnded: it failed, was refused, took too long, or its result is no longer wanted.
        """
