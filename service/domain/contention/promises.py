"""Slots that other jobs release for a waiting job are promised to it, until it has them.

A decision takes two rounds: others release slots in the first, and the waiting job starts on them in a later one. The
promise is stored with the waiting job (`JobProgress.promise`), so it outlasts rounds and restarts of the service. It ends
when the job starts, ends or is paused, when a job of a higher priority is submitted, or when a promised slot is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from headway.contract.run_facts import SlotPromise
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.jobs.job import Allocation, Job, size_of

_RELEASING = frozenset({JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING, JobState.RUNNING})


def with_promise(job: Job, slots: Allocation | None, now: datetime, stopped: Sequence[str] = ()) -> Job:
    """Return a waiting job with the slots that a round promises it; None ends an earlier promise.

    `stopped` are the ids of the jobs that this round stops for it.
    """
    before = job.progress.promise
    if slots is None:
        promise = None
    else:
        promise = SlotPromise(
            at=now,
            slots={node: list(own) for node, own in slots.items()},
            generation=job.newest_generation,
            stopped=list(stopped),
        )
        if before is not None and (before.slots, before.generation) == (promise.slots, promise.generation):
            promise = before
    if promise == before:
        return job
    return replace(job, progress=job.progress.model_copy(update={"promise": promise}))


def promised_slots(job: Job, snapshot: Snapshot) -> tuple[SlotKey, ...]:
    """Return the slots that are reserved for a job now; none without a promise that holds."""
    promise = job.progress.promise
    if promise is None or _is_overtaken(job, promise, snapshot):
        return ()
    return _released_for(job, promise, snapshot)


def slots_to_start_on(job: Job, snapshot: Snapshot) -> tuple[SlotKey, ...]:
    """Return the free slots that others released for a job, for a round that gives it slots.

    A job of a higher priority that was submitted since may take them. Where both get slots, each released slot still
    reaches the job for which another one was stopped.
    """
    promise = job.progress.promise
    keys = () if promise is None else _released_for(job, promise, snapshot)
    return keys if all(key not in snapshot.held for key in keys) else ()


def _released_for(job: Job, promise: SlotPromise, snapshot: Snapshot) -> tuple[SlotKey, ...]:
    waits = job.state in {JobState.PENDING, JobState.RECOVERING} and not job.pause_requested
    if not waits or promise.generation != job.newest_generation:
        return ()
    keys = tuple(SlotKey(node, slot) for node, slots in sorted(promise.slots.items()) for slot in slots)
    return keys if all(_comes(key, snapshot) for key in keys) else ()


def with_promises_held(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which jobs already hold their promised slots while others still leave some of them.

    Until all are free, a round neither gives these slots away nor frees others for the same job.
    """
    coming = {
        key: job.id
        for job, keys in _promises(snapshot)
        if any(key in snapshot.held for key in keys)
        for key in keys
    }
    return replace(snapshot, held={**snapshot.held, **coming}) if coming else snapshot


def _promises(snapshot: Snapshot) -> Iterator[tuple[Job, tuple[SlotKey, ...]]]:
    for job in snapshot.jobs.values():
        if job.progress.promise is not None:
            keys = promised_slots(job, snapshot)
            if keys:
                yield job, keys


def _comes(key: SlotKey, snapshot: Snapshot) -> bool:
    """Return True if a slot is free, or a job is about to leave it."""
    node = snapshot.nodes.get(key.node_id)
    if node is None or not node.takes_jobs or key.slot not in node.slots:
        return False
    holder = snapshot.jobs.get(snapshot.held.get(key, ""))
    if holder is None:
        return True
    settled = holder.switch is None and len(snapshot.slots_held_by(holder.id)) == size_of(holder.allocation)
    return holder.state in _RELEASING and not (holder.state is JobState.RUNNING and settled)


def _is_overtaken(job: Job, promise: SlotPromise, snapshot: Snapshot) -> bool:
    """Return True if a job of a higher priority was submitted since the promise and has no slots yet."""
    return any(
        other.spec.priority > job.spec.priority
        and other.submitted_at > promise.at
        and other.state is JobState.PENDING
        and not other.pause_requested
        for other in snapshot.jobs.values()
    )
