"""Jobs and snapshots without transitions, for forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.contract.spec import Resize
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import deciding_jobs
from service.domain.cluster.snapshot import SlotKey, Snapshot, allocation_of
from service.domain.jobs.job import Job


def settled_job(job: Job, keys: Sequence[SlotKey]) -> Job:
    """Return the job as a round could decide about it without any transition: running on these slots, or
    waiting.

    A job of fixed size has its present size and no other.
    """
    elastic, pinned = job.spec.elastic, job.pinned_size
    if elastic.resize is Resize.NEVER and keys:
        pinned = len(keys)
        elastic = elastic.model_copy(update={"resize": Resize.RESTART})
    return replace(
        job,
        state=JobState.RUNNING if keys else JobState.PENDING,
        spec=job.spec.model_copy(update={"elastic": elastic}),
        pinned_size=pinned,
        pause_requested=False,
        retry_at=None,
        allocation=allocation_of(keys),
        target=None,
        switch=None,
    )


def settled(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as it will be when all transitions have ended.

    A round leaves jobs in transition, and jobs that never change their size, on their slots. A forecast counts that
    these slots become free. Jobs that are being cancelled or paused are gone; failed and vacated ones wait.
    """
    deciding = {job.id for job in deciding_jobs(snapshot)}
    jobs, held = dict[str, Job](), dict[SlotKey, str]()
    for job in snapshot.jobs.values():
        if job.id in deciding or job.state is JobState.PAUSED:
            jobs[job.id] = job
            keys = snapshot.slots_held_by(job.id)
        elif job.state is JobState.CANCELLING or job.pause_requested:
            continue
        else:
            keys = _next_slots(job, snapshot)
            jobs[job.id] = settled_job(job, keys)
        held.update(dict.fromkeys(keys, job.id))
    return replace(snapshot, jobs=jobs, held=held)


def _next_slots(job: Job, snapshot: Snapshot) -> tuple[SlotKey, ...]:
    """Return the slots on which a job in transition goes on; none if it waits then."""
    if job.target is not None:
        return tuple(SlotKey(node, slot) for node, slots in job.target.items() for slot in slots)
    stops = job.state in {JobState.RESIZING, JobState.RECOVERING} and job.switch is None
    if stops:
        return ()
    # During a change in place, the slots of new ranks do not count.
    return tuple(
        key for key in snapshot.slots_held_by(job.id) if key.slot in job.allocation.get(key.node_id, ())
    )
