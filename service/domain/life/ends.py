"""Decisions after the last process of a job has ended: start again, wait, pause, retry, or end for good."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headway.contract.run_facts import ProgressSource
from headway.contract.runtime import EXIT_STOPPED
from headway.contract.spec import Launch
from headway.contract.views.forecasts import KeptForecast
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import (
    Ending,
    EndVerdict,
    RankExit,
    judge,
    left_unasked,
    was_hung,
    without_progress,
)
from service.domain.jobs.job import Job
from service.domain.jobs.lifecycle import JobEvent, allows
from service.domain.jobs.membership import Crew, exits_to_judge
from service.domain.jobs.resumption import kept_text
from service.domain.jobs.retries import (
    Failure,
    decide_retry,
    gist,
    has_progressed,
    poison,
    storage_retry,
    with_failure,
)
from service.domain.jobs.tracebacks import never_met
from service.domain.life.effects import CallRound, CountPreemption
from service.domain.life.life import Life
from service.domain.life.lingering import STOPPED_AFTER_SCRIPT, with_ended_script, with_lingering
from service.domain.life.starts import start_generation
from service.domain.life.unreached import note_unreached
from service.domain.perf.milestones import verdict as verdict_on_forecasts

_NO_STORE_HERE = re.compile(r"client socket has .*(127\.0\.0\.1|localhost|::1)")
"""Error of torch without a store on the rank's own host."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Facts that matter only once the last process of a job has ended."""

    output_lost: str | None = None
    """Why the last save of the job's output folder failed; None if it did not."""
    forecasts: tuple[KeptForecast, ...] = ()
    """The job's forecasts, scored as if the job had succeeded now."""


def release_node(life: Life, generation: int, node_id: str, *, slots: Collection[int] | None = None) -> Life:
    """Free slots of a node that has no process left of those started for `generation` (with `slots`: on these
    slots).

    The caller goes on with `go_on` if the last slots were freed and the job is gone. An agent reports a
    release again for every stop that reaches it late, and after its node was LOST. By then the job has
    already gone on, and must not do so twice.
    """
    job = life.job
    carry_over = {}
    if job.target is not None and node_id in job.target and generation == job.generation:
        carry_over = {node_id: job.target[node_id]}
    return life.released(generation, node_id, slots=slots, carry_over=carry_over).having(CallRound())


def has_just_gone(before: Life, after: Life) -> bool:
    """Return True if the step from `before` to `after` freed the last slots of the job."""
    return after.loaded_footprint.held != before.loaded_footprint.held and after.is_gone


def go_on(life: Life, aftermath: Aftermath) -> Life:
    """Decide what comes next, after every process of the job is gone."""
    crew = life.crew
    for generation in sorted({life.job.generation, crew.next_generation or life.job.generation}):
        life = life.without_allocation(generation)
    exits = exits_to_judge(crew, life.loaded_footprint.exits)
    job = replace(life.job, switch=None)
    verdict = with_ended_script(judge(exits, uploaded=job.spec.bundle is not None), job, exits)
    verdict = _waited_for_itself(life, _reclaimed(life, verdict))
    if verdict.reason is Reason.UNREACHABLE:
        life, verdict = _with_unreached_host(life, crew, exits, verdict)
    if job.state is JobState.RECOVERING and job.reason is Reason.HUNG:
        verdict = was_hung(verdict, job.message)
    held = tuple(job.allocation)
    if job.state is JobState.RESIZING:
        stop_s = max(0.0, (life.now - job.state_since).total_seconds())
        job = replace(job, progress=job.progress.model_copy(update={"stop_s": stop_s}))
    moving = job.state is JobState.RESIZING and not job.pause_requested
    if moving and job.target is not None and verdict.ending is not Ending.DONE:
        return start_generation(
            life.with_job(job),
            job.target,
            reason=job.reason,
            message=job.message,
            global_batch=job.target_batch,
        )
    life = life.with_job(job).released(job.newest_generation + 1)
    job = replace(job, target=None, target_batch=None, allocation={})
    life = life.with_job(job)
    if job.state is JobState.CANCELLING and job.reason is Reason.TARGET_REACHED:
        life = _with_scores(life, aftermath.forecasts)
        message = _with_lost_output(job.message, aftermath)
        return life.advanced(JobEvent.SUCCEED, reason=job.reason, message=message)
    if job.state is JobState.CANCELLING and verdict.message != STOPPED_AFTER_SCRIPT:
        message = _with_lost_output(
            "cancelled" if job.reason is Reason.USER_REQUEST else job.message, aftermath
        )
        return life.advanced(JobEvent.VANISH, reason=job.reason, message=message)
    if verdict.ending is Ending.DONE and allows(job.state, JobEvent.SUCCEED):
        life = _with_scores(life, aftermath.forecasts)
        ran_s = max(0.0, (life.now - job.state_since).total_seconds())
        verdict = without_progress(verdict, exits, job.progress, ran_s)
        message = _with_lost_output(with_lingering(_with_warnings(verdict.message, job), job), aftermath)
        return life.advanced(JobEvent.SUCCEED, reason=verdict.reason, message=message)
    if job.state is JobState.RESIZING:
        return _wait_again(life)
    if verdict.ending is Ending.STOPPED and left_unasked(exits):
        # Without counting it as a failure, the job would restart at once, again and again.
        message = (
            f"it exited with code {EXIT_STOPPED}, as after SIGTERM, and Headway had requested no stop: a process of the host sent "
            "the signal, or the script exited with this code"
        )
        verdict = EndVerdict(Ending.INFRASTRUCTURE, Reason.RANK_LOST, message)
    return _recover(life, verdict, held, aftermath)


def _with_warnings(message: str, job: Job) -> str:
    """Put before the message of an end that the result may differ from that of an undisturbed run, if ranks have said so."""
    count = len(job.progress.warnings)
    # State that was not prepared is lost with a later generation at the earliest.
    if not (job.progress.gradients_lost or (count and job.generation > 1)):
        return message
    said = "a warning says" if count == 1 else f"{count} warnings say"
    return f"the result may be another than undisturbed ({said} why: `headway describe {job.spec.name}`); {message}"


def _reclaimed(life: Life, verdict: EndVerdict) -> EndVerdict:
    """Return the verdict with the spot reclaim as its reason, if an agent stopped its ranks before its
    machine is taken away.
    """
    hosts = life.loaded_footprint.hosts
    taken = [hosts[node].name for node in life.job.allocation if node in hosts and hosts[node].reclaimed]
    if verdict.ending is not Ending.STOPPED or not taken:
        return verdict
    return replace(verdict, reason=Reason.SPOT_RECLAIMED, message=f"the provider takes node {taken[0]} away")


def _waited_for_itself(life: Life, verdict: EndVerdict) -> EndVerdict:
    """Return the verdict with the remedy, if the only rank that a job can have waited for a store in vain.

    It has no peer. A script that starts processes of its own (`mp.spawn`) leaves torchrun's environment to them, with
    which none of them opens the store.
    """
    spec = life.job.spec
    if verdict.reason is not Reason.UNREACHABLE or spec.environment is Launch.PLAIN:
        return verdict
    if spec.allowed_sizes() != (1,):
        return replace(verdict, message=_with_store_advice(verdict.message))
    return EndVerdict(
        Ending.USER_ERROR,
        Reason.USER_ERROR,
        f"{verdict.message}; the job has one rank, so a script that starts processes of its own waits for a store that "
        "none of them opens, because they inherit torchrun's environment: set launch: plain",
    )


def _with_store_advice(said: str) -> str:
    """Return an error with the remedy, if ranks found no store on their own host: the agent opens it at the address that it sets."""
    if _NO_STORE_HERE.search(said) is None:
        return said
    return f"{said.rstrip('.')}; Headway opens the store at the MASTER_ADDR and MASTER_PORT that it sets: a script that sets others must leave them"


def _with_unreached_host(
    life: Life, crew: Crew, exits: Sequence[RankExit], verdict: EndVerdict
) -> tuple[Life, EndVerdict]:
    """Return the life with a note about the host that a rank could not reach, and the verdict with its name."""
    nodes = {one.rank: one.node_id for one in crew.running}
    said_by = {one.rank: never_met(one.log_tail) for one in exits}
    rank = next(
        rank for rank, said in said_by.items() if said and verdict.message.startswith(said.rstrip("."))
    )
    life, said = (
        note_unreached(life, nodes[rank], verdict.message) if rank in nodes else (life, verdict.message)
    )
    return life, replace(verdict, message=said)


def _with_lost_output(message: str, aftermath: Aftermath) -> str:
    """Put before the message of a job's end that output files are missing in storage, if they are.

    The message may end in lines of the script, with which the loss must not merge.
    """
    return f"{aftermath.output_lost}\n{message}" if aftermath.output_lost else message


def _with_scores(life: Life, forecasts: Sequence[KeptForecast]) -> Life:
    """Return the life of a job that has succeeded, with its forecasts scored."""
    if not forecasts:
        return life
    progress = life.job.progress.model_copy(update={"forecasts": list(forecasts)})
    life = life.with_job(replace(life.job, progress=progress))
    message = verdict_on_forecasts(forecasts)
    if not message:
        return life
    data = {"forecasts": [one.model_dump(mode="json") for one in forecasts]}
    return life.noted("forecast_scored", message=message, data=data)


def _wait_again(life: Life) -> Life:
    job = life.job
    if job.pause_requested:
        return pause_now(life, reason=Reason.BUDGET if job.reason is Reason.BUDGET else Reason.USER_REQUEST)
    life = life.with_job(replace(job, preemptions=job.preemptions + 1)).having(CountPreemption(job.reason))
    return life.advanced(JobEvent.REQUEUE, reason=job.reason, message=job.message)


def pause_now(life: Life, *, reason: Reason = Reason.USER_REQUEST) -> Life:
    """Set a job that holds nothing to PAUSED."""
    job = life.job
    where = f" at {job.progress.samples:,} samples" if job.progress.samples else ""
    if job.generation and job.progress.source is not ProgressSource.LIBRARY:
        where += "; whether it saved a checkpoint is unknown"
    spent = ": its budget is spent; `headway resume` continues it" if reason is Reason.BUDGET else ""
    life = life.with_job(replace(job, pause_requested=False, allocation={}))
    return life.advanced(JobEvent.PAUSE, reason=reason, message=f"paused{where}{spent}")


def _recover(life: Life, verdict: EndVerdict, held: tuple[str, ...], aftermath: Aftermath) -> Life:
    """Retry a failed generation, or give up, depending on the retry budget of the failure's kind.

    `held` are the ids of the nodes that the job held.
    """
    if life.job.state is not JobState.RECOVERING:
        life = life.advanced(JobEvent.FAIL_RANK, reason=verdict.reason, message=verdict.message)
    job = life.job
    node_lost = job.reason is Reason.NODE_LOST
    reason, message = (job.reason, job.message) if node_lost else (verdict.reason, verdict.message)
    job = replace(
        job,
        infrastructure_failures=job.infrastructure_failures + (verdict.ending is Ending.INFRASTRUCTURE),
        user_errors=job.user_errors + (verdict.ending is Ending.USER_ERROR),
        preemptions=job.preemptions + (verdict.ending is Ending.STOPPED),
    )
    life = life.with_job(job)
    if verdict.ending is Ending.STOPPED:
        life = life.having(CountPreemption(reason))
    elif verdict.ending is Ending.STORAGE:
        job = replace(job, failures=with_failure(job.failures, _failure(life, reason, message, held)))
        _, not_before = storage_retry(job.failures, life.now)
        job = replace(job, retry_at=not_before)
        wait_s = (not_before - life.now).total_seconds()
        message = f"{_first_line(message)}; the next start follows in {wait_s:.0f} s or later, and no retry is counted"
    else:
        failure = _failure(life, reason, message, held)
        if has_progressed(job.failures, failure):
            anew = int(verdict.ending is Ending.INFRASTRUCTURE)
            job = replace(job, failures=(), infrastructure_failures=anew)
        job = replace(job, failures=with_failure(job.failures, failure))
        retry = decide_retry(
            verdict.ending,
            job.spec.retry,
            infrastructure_failures=job.infrastructure_failures,
            user_errors=job.user_errors,
            now=life.now,
        )
        why_not = poison(job.failures)
        if why_not is not None:
            message = f"{_first_line(message)}; {why_not}" + message[len(message.splitlines()[0]) :]
        if not retry.again or why_not is not None:
            message = _with_lost_output(message, aftermath)
            return life.with_job(job).advanced(JobEvent.GIVE_UP, reason=reason, message=message)
        job = replace(job, retry_at=retry.not_before)
        message = f"{_first_line(message)}; retry {retry.spent} of {retry.budget}"
    life = life.with_job(job)
    if job.pause_requested:
        return pause_now(life)
    message = f"{message}; {kept_text(job)}"
    life = life.with_job(replace(job, reason=reason, message=message))
    return life.noted("recover", reason=reason, message=message).having(CallRound())


def _failure(life: Life, reason: Reason, message: str, held: tuple[str, ...]) -> Failure:
    """Return the record of a failure of a job that held slots on these nodes."""
    job, ran, hosts = life.job, life.running, life.loaded_footprint.hosts
    lost = sorted(hosts[node].name for node in held if node in hosts and hosts[node].lost)
    return Failure(
        reason=reason,
        said=gist(message),
        ran_s=(job.state_since - ran.granted_at).total_seconds() if ran is not None else 0.0,
        samples=job.progress.samples,
        checkpoint_samples=job.progress.checkpoint_samples,
        nodes=tuple(lost) if reason is Reason.NODE_LOST else (),
    )


def _first_line(message: str) -> str:
    return message.splitlines()[0].rstrip(";:")
