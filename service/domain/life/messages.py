"""Messages of ranks: about their start, their training, and their part in changes."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

from headway.contract.runtime import (
    BATCH_LEFT_OUT,
    GRADIENTS_LOST,
    BatchChanged,
    CannotMeet,
    CheckpointFailed,
    Completed,
    EpochClosed,
    FirstStep,
    Left,
    Message,
    Ready,
    Restored,
    Switched,
    Warned,
)
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.membership import Born
from service.domain.jobs.progress import after_message
from service.domain.life.changes import complete_switch, member_left, newcomer_ready
from service.domain.life.effects import CallRound, RefreshPages
from service.domain.life.life import Life
from service.domain.life.survivals import meeting_failed
from service.domain.perf.convergence import after_loss
from service.domain.perf.goal_target import after_report

MAX_WARNINGS = 16
"""Maximum number of warnings that a job keeps, each also an event."""


def awaits_start(life: Life, node_id: str, generation: int) -> bool:
    """Return True if the job still waits for this node to start its ranks of the generation."""
    job = life.job
    return generation == job.generation and job.state is JobState.STARTING and node_id in job.allocation


def ranks_started(life: Life, how: str, nodes_started: int) -> Life:
    """Let the job run once all of its nodes, of which so many have, started their ranks."""
    job = life.job
    if nodes_started < len(job.allocation):
        return life
    life = life.with_job(replace(job, started_at=job.started_at or life.now))
    return life.advanced(JobEvent.START, reason=Reason.PROGRESSING, message=job.message, data={"how": how})


def message_refused(life: Life, why: str) -> Life:
    """Record an invalid message. Raising an error would block all later entries of its node."""
    return life.noted("message_refused", message=why)


def message_taken(life: Life, who: Born, message: Message, *, vacated_at: datetime | None = None) -> Life:
    """Return the life with a message applied, whose sender may report for the message's generation.

    `vacated_at` is the time at which the job was asked to move to other slots, if its first step comes after
    that. Frequent messages about progress are gathered by `service.usecases.reports.training` instead.
    """
    before = life.job.progress
    progress = after_loss(before, after_report(before, after_message(before, message), message), message)
    begun = progress.begun_generation != before.begun_generation
    # A live job changes in place, so a first step of its new members does not end a start.
    if begun and life.running is not None and not life.job.live:
        start_s = max(0.0, (life.now - life.running.granted_at).total_seconds())
        progress = progress.model_copy(update={"start_s": start_s})
    if progress != before:
        life = life.with_job(replace(life.job, progress=progress)).having(RefreshPages())
    match message:
        case Ready():
            return newcomer_ready(life, message)
        case CannotMeet():
            member = life.crew.member(who)
            assert member is not None, f"{who} may not report for {life.job.id}"
            return meeting_failed(life, member.node_id, message)
        case Left():
            return member_left(life, who, message)
        case Switched() if message.rank == 0:
            return complete_switch(life, message)
        case FirstStep() if message.plain:
            return _with_first_report(life, before, message) if begun else life
        case FirstStep() if message.rank == 0:
            return _with_first_step(life, before, message, vacated_at)
        case BatchChanged() if message.rank == 0:
            return _with_batch(life, before, message)
        case _:
            return _with_note(life, before, message)


def _with_note(life: Life, before: JobProgress, message: Message) -> Life:
    """Record the event of a message that does nothing else. `before` is the progress before the message."""
    unit = life.job.progress.unit
    match message:
        case Restored():
            again = life.job.progress.lost_samples - before.lost_samples
            text = f"restored the checkpoint at {message.samples:,} {unit}"
            return life.noted(
                "restore", message=text, data={"samples": message.samples, **_lost(before, again)}
            )
        case CheckpointFailed():
            text = f"the checkpoint at {message.samples:,} {unit} could not be saved: {message.why}"
            data = {"samples": message.samples, "rank": message.rank}
            return life.noted("checkpoint_failed", message=text, data=data)
        case Warned():
            return _with_warning(life, message)
        case EpochClosed() if not message.exactly_once:
            text = (
                f"epoch {message.epoch}: {message.samples_seen} samples were trained, but not each of "
                f"the {message.dataset_samples} exactly once; please report this with the job's events"
            )
            return life.noted("audit_failed", message=text)
        case Completed() if message.rank == 0 and message.epoch_samples is not None:
            text = (
                f"training has made the progress of all its epochs within epoch {message.epoch}, after "
                f"{message.epoch_samples:,} samples of it; this part of an epoch is not audited"
            )
            part: dict[str, object] = {"epoch": message.epoch, "epoch_samples": message.epoch_samples}
            return life.noted("ended_within_epoch", message=text, data=part)
        case _:
            return life


def _with_first_step(
    life: Life, before: JobProgress, message: FirstStep, vacated_at: datetime | None
) -> Life:
    if message.sharded != life.job.sharded:
        life = life.with_job(replace(life.job, sharded=message.sharded))
    if message.live and life.job.follows_orders and not life.job.live:
        life = life.with_job(replace(life.job, live=True)).having(CallRound())
    again = life.job.progress.lost_samples - before.lost_samples
    unit = life.job.progress.unit
    stood = {} if vacated_at is None else {"stood_s": max(0.0, (life.now - vacated_at).total_seconds())}
    text = (
        f"training begins again: no checkpoint was found, {again:,} {unit} are lost"
        if again
        else f"training goes on; its first step ended at {message.samples:,} {unit}"
        if before.samples
        else "training begins"
    )
    data = {"samples": message.samples, "rank": message.rank, **_lost(before, again), **stood}
    return life.noted("first_step", message=text, at=datetime.fromtimestamp(message.at_s, UTC), data=data)


def _with_first_report(life: Life, before: JobProgress, message: FirstStep) -> Life:
    """Record the first step that a script without the library reports in a generation."""
    again = life.job.progress.lost_samples - before.lost_samples
    went_on = f"reports step {message.samples:,}"
    text = (
        f"{went_on} after it was stopped at {before.samples:,}"
        if before.first_samples is not None
        else f"{went_on} first"
    )
    data = {"samples": message.samples, "rank": message.rank, "plain": True, **_lost(before, again)}
    return life.noted("first_step", message=text, at=datetime.fromtimestamp(message.at_s, UTC), data=data)


def _with_warning(life: Life, message: Warned) -> Life:
    """Record what several ranks may say, once."""
    progress = life.job.progress
    if message.text in progress.warnings or len(progress.warnings) >= MAX_WARNINGS:
        return life
    lost = progress.gradients_lost or message.code in {BATCH_LEFT_OUT, GRADIENTS_LOST}
    progress = progress.model_copy(
        update={"warnings": [*progress.warnings, message.text], "gradients_lost": lost}
    )
    life = life.with_job(replace(life.job, progress=progress)).having(RefreshPages())
    return life.noted("warning", message=message.text, data={"code": message.code})


def _with_batch(life: Life, before: JobProgress, message: BatchChanged) -> Life:
    allocation = life.generations.get(message.generation)
    decided = allocation is not None and allocation.round_id is not None
    why = allocation.message if allocation is not None and decided else message.cause
    data = {
        "from": before.global_batch,
        "to": message.global_batch,
        "lr_factor": message.lr_factor,
        "reason": why,
        "samples": message.samples,
    }
    text = f"{why}; the learning rate is {message.lr_factor:.3g} times the script's"
    return life.noted("batch_changed", message=text, data=data)


def _lost(before: JobProgress, samples: int) -> dict[str, float | None]:
    """Return the number of samples to repeat, and the seconds that they take at the last measured speed, None
    if it is unknown.
    """
    speed = before.samples_per_s
    known = speed is not None and 0 < speed < math.inf
    return {"lost_samples": samples, "lost_s": samples / speed if known and speed else None}
