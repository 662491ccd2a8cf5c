"""What-if simulations: requested, stored, and run one at a time in the background."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from headway.contract.views.simulations import (
    AddJob,
    DropJob,
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
)
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import class_of
from service.domain.policies.registry import Policies
from service.domain.shared.errors import IdempotencyConflict, InvalidField, SimulationEnded, Unavailable
from service.simulation.changes import settings_of, with_changes
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.simulations import AskedSimulation, Simulator, TakenSimulation
from service.usecases.ports.transactions import Transaction, Transactions

_Value = TypeVar("_Value")
MOST_ATTEMPTS = 3
"""Maximum number of runs of a simulation. After so many interruptions of its process, it fails."""


async def ask(
    transactions: Transactions,
    request: SimulationRequest,
    policies: Policies,
    *,
    seen: frozenset[str] | None,
    simulation_id: str,
    idempotency_key: str | None,
    now: datetime,
) -> AskedSimulation:
    """Store a request for a simulation, or return the one stored before under the same idempotency key.

    `seen` holds the projects that the requester can see (None: all).

    Raises:
        InvalidField: a change is impossible in the present cluster, as far as the requester sees it.
        IdempotencyConflict: the key was used for another request.
    """
    key = idempotency_key
    if key is not None and seen is not None:
        key = f"{key} of {' '.join(sorted(seen))}"
    digest = hashlib.sha256(request.model_dump_json(by_alias=True).encode()).hexdigest()
    async with transactions.begin() as tx:
        snapshot = await tx.rounds.snapshot(now)
    _check_visibility(request, snapshot, seen)
    changed = with_changes(masked(snapshot, seen), request.changes, policies)
    settings_of(changed.snapshot, request.policies, policies)
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
            tx.wake(WakeUp.SIMULATIONS)
    return asked


async def run_next(
    transactions: Transactions,
    simulator: Simulator,
    *,
    usd_per_slot_h: Mapping[str, float],
    now: Callable[[], datetime],
) -> TakenSimulation | None:
    """Run the oldest simulation on the present cluster. Return it, or None if there is none.

    A simulation that is already marked as running has lost its process, since only one runs at a time. It
    starts again.
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
    """Return the result of a simulation. Raise SimulationEnded if there is none."""
    if taken.attempt > MOST_ATTEMPTS:
        raise SimulationEnded(f"its run was interrupted {MOST_ATTEMPTS} times; start it again")
    if taken.request is None:
        raise SimulationEnded("it was requested from another version of the service; start it again")

    async def wanted(progress: float) -> bool:
        try:
            async with transactions.begin() as tx:
                return await tx.simulations.report(taken, progress)
        except Unavailable:
            # The result can be stored later.
            return True

    async with transactions.begin() as tx:
        snapshot, ended = await _inputs(tx, taken.request, usd_per_slot_h, now())
    shown = masked(snapshot, taken.seen)
    ended = {**ended, **_by_masked_class(snapshot, shown, ended)}
    result = await simulator.simulate(shown, taken.request, ended, wanted)
    hidden = {job.id for job in snapshot.jobs.values() if shown.jobs[job.id] is not job}
    return result.model_copy(update={"jobs": [one for one in result.jobs if one.job_id not in hidden]})


def _check_visibility(request: SimulationRequest, snapshot: Snapshot, seen: frozenset[str] | None) -> None:
    """Raise InvalidField if the request adds or drops jobs of projects that are not `seen`."""
    if seen is None:
        return
    hidden = {job.id for job in snapshot.jobs.values() if job.spec.project not in seen}
    for index, one in enumerate(request.changes):
        if isinstance(one, AddJob) and one.spec.project not in seen:
            raise InvalidField(
                f"changes.{index}.spec.project",
                f"no project is called {one.spec.project!r}, or you are not a member of it",
            )
        if isinstance(one, DropJob) and one.job in hidden:
            raise InvalidField(f"changes.{index}.job", f"no active job has the id or name {one.job!r}")


def masked(snapshot: Snapshot, seen: frozenset[str] | None) -> Snapshot:
    """Return the snapshot as seen by a reader of some projects: jobs of other projects are renamed."""
    if seen is None:
        return snapshot
    jobs = dict(snapshot.jobs)
    for number, job in enumerate(sorted(jobs.values(), key=lambda job: job.id), start=1):
        if job.spec.project not in seen:
            # The name does not end in a number, so each of these jobs is a class of its own.
            spec = job.spec.model_copy(update={"name": f"job {number} of another project"})
            jobs[job.id] = replace(job, spec=spec)
    shown = replace(snapshot, jobs=jobs)
    measured, losses = snapshot.class_measurements, snapshot.loss_histories
    return replace(
        shown,
        class_measurements={**measured, **_by_masked_class(snapshot, shown, measured)},
        loss_histories={**losses, **_by_masked_class(snapshot, shown, losses)},
    )


def _by_masked_class(
    snapshot: Snapshot, shown: Snapshot, of_class: Mapping[str, _Value]
) -> dict[str, _Value]:
    """Return what is known of classes, by the class names of the renamed jobs."""
    return {
        class_of(job.spec): of_class[name]
        for job in shown.jobs.values()
        if (name := class_of(snapshot.jobs[job.id].spec)) in of_class
    }


async def _inputs(
    tx: Transaction, request: SimulationRequest, usd_per_slot_h: Mapping[str, float], now: datetime
) -> tuple[Snapshot, Mapping[str, list[float]]]:
    """Return the snapshot, and the sample counts of ended jobs by class.

    It must be the first statement of its transaction.

    The snapshot includes measurements for the classes of jobs that the request adds.
    """
    snapshot = await tx.rounds.snapshot(now, usd_per_slot_h)
    added = {class_of(one.spec) for one in request.changes if isinstance(one, AddJob)}
    measured = {name: await tx.round_queries.measured_of_class(name) for name in sorted(added)}
    classes = {class_of(job.spec) for job in snapshot.jobs.values()} | added
    ended = {name: await tx.round_queries.ended_samples(name) for name in sorted(classes)}
    return replace(snapshot, class_measurements={**snapshot.class_measurements, **measured}), ended
