"""Steps of a job that waits for the end of others: its release, its cancellation, and the sentence while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.after import Chance, Predecessor, judge
from service.domain.jobs.lifecycle import JobEvent
from service.domain.life.ends import Aftermath
from service.domain.life.life import Life
from service.domain.life.requests import cancel


def after_end(life: Life, predecessors: Sequence[Predecessor]) -> tuple[Life, bool]:
    """Return a waiting job's life after one of its predecessors ended, and True if it is to be released.

    A job that can never start is cancelled, with the reason. The release itself follows once files are copied.
    """
    verdict = judge(predecessors)
    if not life.job.waits:
        return life, False
    if verdict.chance is Chance.NEVER:
        message = f"cancelled: {verdict.message}"
        return cancel(life, Aftermath(), force=False, reason=Reason.AFTER, message=message), False
    starts = verdict.chance is Chance.STARTS
    message = f"{verdict.message}; its files are being made ready" if starts else verdict.message
    if life.job.state is JobState.PENDING and message != life.job.message:
        life = life.with_job(replace(life.job, message=message)).noted("after", message=message)
    return life, starts


def files_missing(life: Life, predecessors: Sequence[Predecessor], why: str) -> Life:
    """Let a job whose predecessors' files cannot be copied say so with the first reason. The copy is tried again."""
    waits = f"{judge(predecessors).message}; its files cannot be copied yet"
    if not life.job.waits or life.job.state is not JobState.PENDING or life.job.message.startswith(waits):
        return life
    message = f"{waits}, and the copy is tried again: {why}"
    return life.with_job(replace(life.job, message=message)).noted("after", message=message)


def release(life: Life, predecessors: Sequence[Predecessor]) -> Life:
    """Let a job whose predecessors have all ended as wanted wait for slots. A paused one stays paused."""
    verdict = judge(predecessors)
    if not life.job.waits or verdict.chance is not Chance.STARTS:
        return life
    if life.job.state is not JobState.PENDING:  # its user paused it
        return life.with_job(replace(life.job, waits=False)).noted("released", message=verdict.message)
    message = f"{verdict.message}; waits for the next round"
    return life.advanced(JobEvent.RELEASE, reason=Reason.SUBMITTED, message=message)
