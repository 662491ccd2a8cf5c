"""What-if questions: asked, stored, and answered one at a time in the background."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from headway.contract.simulations import (
    AddJob,
    DropJob,
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
)
from service.domain.cluster import Snapshot
from service.domain.errors import IdempotencyConflict, InvalidField, SimulationEnded, Unavailable
from service.domain.jobs import class_of
from service.simulation.changes import settings_of, with_changes
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import AskedSimulation, Bell, TakenSimulation
from service.usecases.simulation_ports import Simulator

_Known = TypeVar("_Known")
MOST_ATTEMPTS = 3
"""A simulation that breaks off so often, with the process that ran it, is not taken up again."""


async def ask(
    transactions: Transactions,
    request: SimulationRequest,
    *,
    seen: frozenset[str] | None,
    simulation_id: str,
    idempotency_key: str | None,
    now: datetime,
) -> AskedSimulation:
    """The stored question of somebody who sees some projects (None: all); the one stored before when the idempotency key was
    used for the same request.

    Raises:
        InvalidField: a change that cannot be made in the cluster as it is now, as far as they see it.
        IdempotencyConflict: the key was used for another request.
    """
    key = idempotency_key
    if key is not None and seen is not None:
        key = f"{key} of {' '.join(sorted(seen))}"
    digest = hashlib.sha256(request.model_dump_json(by_alias=True).encode()).hexdigest()
    async with transactions.begin() as tx:
        snapshot = await tx.decisions.snapshot(now)
    _check_sight(request, snapshot, seen)
    settings_of(with_changes(masked(snapshot, seen), request.changes).snapshot, request.policies)
    async with transactions.begin() as tx:
        asked = await tx.simulations.insert(
            simulation_id, request, seen=seen, idempotency_key=key, request_digest=digest, now=now
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
    shown = masked(snapshot, taken.seen)
    ended = {**ended, **_of_masked(snapshot, shown, ended)}
    result = await simulator.simulate(shown, taken.request, ended, wanted)
    hidden = {job.id for job in snapshot.jobs.values() if shown.jobs[job.id] is not job}
    return result.model_copy(update={"jobs": [one for one in result.jobs if one.job_id not in hidden]})


def _check_sight(request: SimulationRequest, snapshot: Snapshot, seen: frozenset[str] | None) -> None:
    """Whether the jobs that the request adds or drops are of projects that are `seen`. Raises InvalidField."""
    if seen is None:
        return
    foreign = {job.id for job in snapshot.jobs.values() if job.spec.project not in seen}
    for index, one in enumerate(request.changes):
        if isinstance(one, AddJob) and one.spec.project not in seen:
            raise InvalidField(
                f"changes.{index}.spec.project",
                f"no project is called {one.spec.project!r}, or you are not a member of it",
            )
        if isinstance(one, DropJob) and one.job in foreign:
            raise InvalidField(f"changes.{index}.job", f"no active job has the id or name {one.job!r}")


def masked(snapshot: Snapshot, seen: frozenset[str] | None) -> Snapshot:
    """The same cluster for somebody who sees some projects: jobs of others are there, without their names."""
    if seen is None:
        return snapshot
    jobs = dict(snapshot.jobs)
    for number, job in enumerate(sorted(jobs.values(), key=lambda job: job.id), start=1):
        if job.spec.project not in seen:
            # No number at the end: each is a class of its own.
            spec = job.spec.model_copy(update={"name": f"job {number} of another project"})
            jobs[job.id] = replace(job, spec=spec)
    shown = replace(snapshot, jobs=jobs)
    of_classes = _of_masked(snapshot, shown, snapshot.class_measurements)
    return replace(shown, class_measurements={**snapshot.class_measurements, **of_classes})


def _of_masked(snapshot: Snapshot, shown: Snapshot, of_class: Mapping[str, _Known]) -> dict[str, _Known]:
    """What is known of classes, under the names that masked jobs have."""
    return {
        class_of(job.spec): of_class[known]
        for job in shown.jobs.values()
        if (known := class_of(snapshot.jobs[job.id].spec)) in of_class
    }


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
