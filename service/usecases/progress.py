"""What the ranks say of the training, taken into the job's progress and history."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headway.contract.jobs import JobProgress, Reason
from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
    CheckpointFailed,
    Completed,
    EpochClosed,
    FirstStep,
    Left,
    Message,
    Metrics,
    Progress,
    Ready,
    Restored,
    Stopped,
    Switched,
)
from service.domain.jobs import Job
from service.domain.membership import Born
from service.usecases.live import complete_switch, member_left, newcomer_ready
from service.usecases.ports import Transaction
from service.usecases.records import Bell
from service.usecases.transition import record

MAX_METRIC_NAMES = 200
"""Of a job: the latest value of each is in its row."""


async def take_in_message(tx: Transaction, job: Job, who: Born, message: Message, now: datetime) -> Job:
    """The job with the message's news in its progress, saved. `who` may speak for the message's generation. How training
    goes, which ranks say all the time, is taken in by `training`.
    """
    before, progress = job.progress, after_message(job.progress, message)
    if progress != before:
        job = replace(job, progress=progress)
        await tx.jobs.save(job)
        tx.ring(Bell.EVENTS, job.id)
    match message:
        case Ready():
            return await newcomer_ready(tx, job, message, now)
        case Left():
            return await member_left(tx, job, who, message)
        case Switched() if message.rank == 0:
            return await complete_switch(tx, job, message, now)
        case FirstStep() if message.rank == 0 and message.live and job.follows_orders and not job.live:
            job = replace(job, live=True)
            await tx.jobs.save(job)
            tx.ring(Bell.ROUND)
    await _note(tx, job, before, message, now)
    return job


async def _note(tx: Transaction, job: Job, before: JobProgress, message: Message, now: datetime) -> None:
    """The event of a message that has one. `before` is the progress before it."""
    progress = job.progress
    match message:
        case FirstStep() if message.rank == 0:
            again = progress.lost_samples - before.lost_samples
            vacated_at = await tx.history.vacated_at(job.id)
            stood = {} if vacated_at is None else {"stood_s": max(0.0, (now - vacated_at).total_seconds())}
            await record(
                tx,
                job,
                "first_step",
                message=f"training begins again: no checkpoint was found, {again} samples are lost"
                if again
                else f"training goes on from {message.samples:,} samples"
                if before.samples
                else "training begins",
                now=datetime.fromtimestamp(message.at_s, UTC),
                data={"samples": message.samples, "rank": message.rank, **_lost(before, again), **stood},
            )
        case Restored():
            lost = progress.lost_samples - before.lost_samples
            await record(
                tx,
                job,
                "restore",
                message=f"restored the checkpoint at {message.samples:,} samples",
                now=now,
                data={"samples": message.samples, **_lost(before, lost)},
            )
        case CheckpointFailed():
            await record(
                tx,
                job,
                "checkpoint_failed",
                message=f"the checkpoint at {message.samples:,} samples could not be saved: {message.why}",
                now=now,
                data={"samples": message.samples, "rank": message.rank},
            )
        case EpochClosed() if not message.exactly_once:
            await record(
                tx,
                job,
                "audit_failed",
                message=f"epoch {message.epoch}: {message.samples_seen} samples were trained, but not each of "
                f"the {message.dataset_samples} exactly once; please report this with the job's events",
                now=now,
            )
        case BatchChanged() if message.rank == 0:
            await _note_batch(tx, job, before, message, now)


async def _note_batch(
    tx: Transaction, job: Job, before: JobProgress, message: BatchChanged, now: datetime
) -> None:
    allocation = await tx.allocations.get(job.id, message.generation)
    ordered = allocation is not None and allocation.reason is Reason.BETTER_BATCH
    why = allocation.message if allocation is not None and ordered else message.cause
    await record(
        tx,
        job,
        "batch_changed",
        message=f"{why}; the learning rate is {message.lr_factor:.3g} times the script's",
        now=now,
        data={
            "from": before.global_batch,
            "to": message.global_batch,
            "lr_factor": message.lr_factor,
            "reason": why,
            "samples": message.samples,
        },
    )


def after_message(progress: JobProgress, message: Message) -> JobProgress:
    """The progress after a message. Samples fall back only when a checkpoint was restored."""
    match message:
        case Progress():
            per_s = (
                message.steps * message.global_batch / message.step_s_sum if message.step_s_sum > 0 else None
            )
            update: dict[str, Any] = {
                "epoch": message.epoch,
                "samples": message.samples,
                "total_samples": message.total_samples,
                "samples_per_s": per_s or progress.samples_per_s,
                "global_batch": message.global_batch,
                "max_global_batch": message.max_global_batch,
            }
        case BatchChanged() if message.rank == 0:
            update = {"global_batch": message.global_batch}
        case Metrics():
            update = {"metrics": {**progress.metrics, **message.values}}
        case Checkpointed():
            update = {"checkpoint_samples": message.samples}
        case Restored():
            lost = max(0, progress.samples - message.samples)
            update = {"samples": message.samples, **_with_lost(progress, lost)}
        case FirstStep() if message.rank == 0 and message.samples < progress.samples:
            # Whoever restores a checkpoint says so before the first step: this generation found none.
            update = {
                "samples": message.samples,
                "checkpoint_samples": None,
                **_with_lost(progress, progress.samples),
            }
        case EpochClosed() if message.epoch + 1 > progress.epochs_audited:
            # News of epochs between may be lost with the node that had them; the state knows of all.
            told = progress.epochs_exact + message.exactly_once
            exact = told if message.exact_so_far is None else min(message.exact_so_far, message.epoch + 1)
            update = {"epochs_audited": message.epoch + 1, "epochs_exact": exact}
        case Stopped() | Completed():
            update = {"samples": max(progress.samples, message.samples)}
        case Switched() if message.rank == 0:
            update = {
                "samples": max(progress.samples, message.samples),
                "lost_steps": progress.lost_steps + message.lost_steps,
                "pause_s": message.pause_s,
            }
        case _:
            update = {}
    return progress.model_copy(update=update)


def within_names(progress: JobProgress, message: Metrics) -> Metrics:
    """The message without values of new names, where a job has reported `MAX_METRIC_NAMES` already."""
    room = MAX_METRIC_NAMES - len(progress.metrics)
    new = [name for name in message.values if name not in progress.metrics]
    if len(new) <= room:
        return message
    left_out = set(new[max(0, room) :])
    values = {name: value for name, value in message.values.items() if name not in left_out}
    return replace(message, values=values)


def _lost(before: JobProgress, samples: int) -> dict[str, float | None]:
    """What is trained again: samples, and the seconds that these took at the speed measured last, None where that is not
    known.
    """
    speed = before.samples_per_s
    known = speed is not None and 0 < speed < math.inf
    return {"lost_samples": samples, "lost_s": samples / speed if known and speed else None}


def _with_lost(progress: JobProgress, samples: int) -> dict[str, int]:
    """The progress's counts of what is trained again, with so many samples more."""
    steps = -(-samples // progress.global_batch) if progress.global_batch else 0
    return {"lost_samples": progress.lost_samples + samples, "lost_steps": progress.lost_steps + steps}
