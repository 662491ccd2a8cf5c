"""What-if questions: asked, stored, and answered one at a time in the background."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from headway.contract.simulations import AddJob, SimulationRequest, SimulationResult, SimulationStatus
from service.domain.cluster import Snapshot
from service.domain.errors import IdempotencyConflict, SimulationEnded, Unavailable
from service.domain.jobs import class_of
from service.simulation.changes import settings_of, with_changes
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import AskedSimulation, Bell, TakenSimulation
from service.usecases.simulation_ports import Simulator

MOST_ATTEMPTS = 3
"""A simulation that breaks off so often, with the process that ran it, is not taken up again."""


async def ask(
    transactions: Transactions,
    request: SimulationRequest,
    *,
    simulation_id: str,
    idempotency_key: str | None,
    now: datetime,
) -> AskedSimulation:
    """The stored question; the one stored before when the idempotency key was used for the same request.

    Raises:
        InvalidField: a change that cannot be made in the cluster as it is now.
        IdempotencyConflict: the key was used for another request.
    """
    digest = hashlib.sha256(request.model_dump_json(by_alias=True).encode()).hexdigest()
    async with transactions.begin() as tx:
        snapshot = await tx.decisions.snapshot(now)
    settings_of(with_changes(snapshot, request.changes).snapshot, request.policies)
    async with transactions.begin() as tx:
        asked = await tx.simulations.insert(
            simulation_id, request, idempotency_key=idempotency_key, request_digest=digest, now=now
        )
        if asked.request_digest != digest:
            raise IdempotencyConflict(
                f"Idempotency-Key {idempotency_key!r} was used for a different simulation ({asked.view.id}); "
                "use a new key for a new request."
            )
        if asked.created:
            tx.ring(Bell.SIMULATIONS)
    return asked


async def run_next(
    transactions: Transactions,
    simulator: Simulator,
    *,
    usd_per_slot_h: Mapping[str, float],
    now: Callable[[], datetime],
) -> TakenSimulation | None:
    """Answer the oldest question, from the cluster as it is now; None when there is none.

    One that was running has lost whoever ran it, since one is run at a time, and is begun anew.
    """
    async with transactions.begin() as tx:
        taken = await tx.simulations.take(now())
    if taken is None:
        return None
    try:
        result = await _answer(transactions, simulator, taken, usd_per_slot_h=usd_per_slot_h, now=now)
    except SimulationEnded as error:
        status, message, result = SimulationStatus.FAILED, error.message, None
    else:
        status, message = SimulationStatus.DONE, "is done"
    async with transactions.begin() as tx:
        await tx.simulations.end(taken, status, message, now(), result)
    return taken


async def _answer(
    transactions: Transactions,
    simulator: Simulator,
    taken: TakenSimulation,
    *,
    usd_per_slot_h: Mapping[str, float],
    now: Callable[[], datetime],
) -> SimulationResult:
    """Raises SimulationEnded."""
    if taken.attempt > MOST_ATTEMPTS:
        raise SimulationEnded(f"its run was interrupted {MOST_ATTEMPTS} times; ask again")
    if taken.request is None:
        raise SimulationEnded("it was asked of another version of the service; ask again")

    async def wanted(progress: float) -> bool:
        try:
            async with transactions.begin() as tx:
                return await tx.simulations.report(taken, progress)
        except Unavailable:
            # The answer can be stored later.
            return True

    async with transactions.begin() as tx:
        snapshot, ended = await _picture(tx, taken.request, usd_per_slot_h, now())
    return await simulator.simulate(snapshot, taken.request, ended, wanted)


async def _picture(
    tx: Transaction, request: SimulationRequest, usd_per_slot_h: Mapping[str, float], now: datetime
) -> tuple[Snapshot, Mapping[str, list[float]]]:
    """The cluster, with what is known of the classes of jobs that the question adds; and what ended jobs took, by class.
    It must be the first thing that its transaction does.
    """
    snapshot = await tx.decisions.snapshot(now, usd_per_slot_h)
    added = {class_of(one.spec) for one in request.changes if isinstance(one, AddJob)}
    measured = {name: await tx.decision_queries.measured_of_class(name) for name in sorted(added)}
    classes = {class_of(job.spec) for job in snapshot.jobs.values()} | added
    ended = {name: await tx.decision_queries.ended_samples(name) for name in sorted(classes)}
    return replace(snapshot, class_measurements={**snapshot.class_measurements, **measured}), ended
