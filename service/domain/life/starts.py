"""Starts and stops of generations: every change by a restart.

Invariant: ranks of a new generation are started anew only after every process of the job is gone, and a slot
passes from one generation to the next without ever being free in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.jobs.job import Allocation, size_of
from service.domain.jobs.kinds import kind_of_members, with_kinds
from service.domain.jobs.lifecycle import JobEvent, allows
from service.domain.jobs.membership import first_members
from service.domain.jobs.parallelism import mesh_text_at
from service.domain.jobs.ranks import layout
from service.domain.jobs.records import AllocationRecord, Prediction
from service.domain.life.commands import choose_ports, send_runs, stop_generation
from service.domain.life.life import Life


def start_generation(
    life: Life,
    allocation: Allocation,
    *,
    reason: Reason,
    message: str,
    round_id: str | None = None,
    predicted: Prediction | None = None,
    global_batch: int | None = None,
    batch_effect: float | None = None,
) -> Life:
    """Start a new generation on slots that are already granted to the next generation number.

    `global_batch` is its batch, and `batch_effect` the exponent by which its ranks count their progress; None: those
    that the job had.
    """
    job, hosts = life.job, life.loaded_footprint.hosts
    previous = life.running if job.generation else None
    ranks = layout(allocation, previous_first=previous.first_node if previous else None)
    first = hosts[ranks[0].node_id]
    generation = job.newest_generation + 1
    stores = choose_ports(life, allocation if job.follows_orders else (first.id,), generation)
    members = with_kinds(first_members(ranks, generation), life.kind_of, job.progress.kind_speeds)
    record = AllocationRecord(
        job_id=job.id,
        generation=generation,
        slots=allocation,
        device_kind=kind_of_members(members, life.kind_of(members[0])),
        first_node=first.id,
        master_port=stores[first.id],
        reason=reason,
        message=message,
        round_id=round_id,
        granted_at=life.now,
        members=members,
        stores=stores,
        predicted=predicted,
    )
    started = replace(
        job,
        progress=_in_run(life, global_batch, batch_effect),
        generation=generation,
        newest_generation=generation,
        attempt=job.attempt + 1,
        allocation=allocation,
        target=None,
        target_batch=None,
        live=False,
        switch=None,
        samples_at_loss=None,
        retry_at=None,
    )
    mesh = mesh_text_at(job, len(members))
    started = replace(started, progress=started.progress.model_copy(update={"mesh": mesh}))
    data = {"round_id": round_id, **_placed(life, allocation)}
    if global_batch is not None:
        data["global_batch"] = global_batch
    life = life.with_job(started).advanced(JobEvent.ALLOCATE, reason=reason, message=message, data=data)
    return send_runs(life.with_allocation(record), record, ranks, first.id)


def _in_run(life: Life, global_batch: int | None, batch_effect: float | None) -> JobProgress:
    """Return the progress of a job that is started, with its batch and exponent if they are given.

    A restart at another size continues its run; any other start begins one.
    """
    given = {"global_batch": global_batch, "batch_effect": batch_effect}
    update: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    update["promise"] = None
    if life.job.state is not JobState.RESIZING:
        update["run_since"] = life.now
    return life.job.progress.model_copy(update=update)


def _placed(life: Life, allocation: Allocation) -> dict[str, object]:
    """Return the data of a start event: the slots that the job got, and the time that it waited for them."""
    waited_s = max(0.0, (life.now - life.job.state_since).total_seconds())
    return {
        "slots": size_of(allocation),
        "nodes": {life.loaded_footprint.hosts[node].name: list(slots) for node, slots in allocation.items()},
        **({"waited_s": waited_s} if life.job.state is JobState.PENDING else {}),
    }


def vacate(
    life: Life, target: Allocation | None, *, reason: Reason, message: str, global_batch: int | None = None
) -> Life:
    """Ask all processes of the job to checkpoint and stop.

    The job then goes on at `target` with `global_batch` (None: as before), waits, or pauses.
    """
    data: Mapping[str, int] = {"from": size_of(life.job.allocation), "to": size_of(target or {})}
    life = life.with_job(replace(life.job, target=target, target_batch=global_batch if target else None))
    life = life.advanced(JobEvent.VACATE, reason=reason, message=message, data=data)
    return stop_generation(life, "checkpoint")


def fail_rank(life: Life, *, reason: Reason, message: str, dump_stacks: bool = False) -> Life:
    """Stop the whole job after a failure that the other ranks cannot survive.

    With `dump_stacks`, every rank writes the stacks of its threads to the log.
    """
    job = life.job
    if not allows(job.state, JobEvent.FAIL_RANK) or (job.state is JobState.RECOVERING and not job.switching):
        return life
    switch = None if job.switch is None else replace(job.switch, stopping=True)
    life = life.with_job(replace(job, target=None, target_batch=None, switch=switch))
    life = life.advanced(JobEvent.FAIL_RANK, reason=reason, message=message)
    return stop_generation(life, "kill", dump_stacks=dump_stacks)
