"""Processes that outlive their script, because threads or exit functions keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headway.contract.run_facts import Lingering
from headway.contract.runtime import EXIT_DONE, Lingers
from headway.contract.values.quantities import duration
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import Ending, EndVerdict, RankExit
from service.domain.jobs.job import Job
from service.domain.jobs.membership import Born
from service.domain.jobs.status import held_by, lingering_text, lingers
from service.domain.life.effects import RefreshPages
from service.domain.life.life import Life

_MOST_NAMES = 64
STOPPED_AFTER_SCRIPT = "its script had ended when it was asked to stop"
"""Message of a job that was stopped while threads kept a process whose script had ended."""


def script_ended(life: Life, who: Born, message: Lingers) -> Life:
    """Return the life after the launcher's code in the process `who` reported that its script has ended.

    The first report and the last one, with which the process is ended, are events.
    """
    if life.job.state is not JobState.RUNNING:
        return life
    member = life.crew.member(who)
    before = life.job.progress.lingering if lingers(life.job.progress, life.job.generation) else None
    ended_s = min(message.ended_s, max(0.0, (life.now - life.job.submitted_at).total_seconds()))
    after = Lingering(
        generation=life.job.generation,
        rank=who[1] if member is None else member.rank,
        since=before.since if before else life.now - timedelta(seconds=ended_s),
        within_s=message.within_s,
        exit_code=message.exit_code,
        waits_for=list(message.waits_for[:_MOST_NAMES]),
        over=message.over,
    )
    if after == before:
        return life
    progress = life.job.progress.model_copy(update={"lingering": after})
    life = life.with_job(replace(life.job, progress=progress)).having(RefreshPages())
    data = {
        "rank": after.rank,
        "ended_s": ended_s,
        "waits_for": after.waits_for,
        "exit_code": after.exit_code,
    }
    if after.over:
        return life.noted("lingering_ended", message=ended_text(after), data=data)
    return (
        life
        if before is not None
        else life.noted("lingers", message=lingering_text(after, ended_s), data=data)
    )


def ended_text(lingering: Lingering) -> str:
    """Return the sentence about a process that was ended because something outlived its script for too long."""
    return (
        f"rank {lingering.rank} was ended {duration(lingering.within_s)} after its script (exit_within), because "
        f"{held_by(lingering)} had not ended"
    )


def with_lingering(message: str, job: Job) -> str:
    """Append to the message of a job's end that a process was ended after its script, if one was."""
    one = job.progress.lingering
    return (
        f"{message}; {ended_text(one)}"
        if one is not None and one.over and one.generation == job.generation
        else message
    )


def with_ended_script(verdict: EndVerdict, job: Job, exits: Sequence[RankExit]) -> EndVerdict:
    """Return the verdict on stopped ranks whose scripts had all ended well before: the job has done its work."""
    one = job.progress.lingering
    if one is None or one.exit_code != EXIT_DONE or not lingers(job.progress, job.generation):
        return verdict
    ended = all(exit_.completed or exit_.exit_code == EXIT_DONE or exit_.rank == one.rank for exit_ in exits)
    if verdict.ending is not Ending.STOPPED or not ended or not exits:
        return verdict
    return EndVerdict(Ending.DONE, Reason.COMPLETED, STOPPED_AFTER_SCRIPT)
