"""End of a job at the target of its job file."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.views.jobs import Reason
from service.domain.jobs.lifecycle import JobEvent, allows
from service.domain.life.changes import halt_switch
from service.domain.life.commands import stop_generation
from service.domain.life.life import Life
from service.domain.perf.goal_target import has_reached, reached_text


def finish_at_target(life: Life) -> Life:
    """Ask all ranks of a job that has reached its target to save a checkpoint and stop. The job then succeeds.

    A job that is ending already, or whose ranks failed in the meantime, stays as it is.
    """
    job = life.job
    target = job.progress.goal_target
    if target is None or not has_reached(job.progress) or not allows(job.state, JobEvent.FINISH):
        return life
    if not life.loaded_footprint.held:
        return life
    message = reached_text(target, job.progress.epoch)
    life = halt_switch(life, message, reason=Reason.TARGET_REACHED)
    life = life.with_job(replace(life.job, target=None, target_batch=None, pause_requested=False))
    life = life.advanced(JobEvent.FINISH, reason=Reason.TARGET_REACHED, message=message)
    return stop_generation(life, "checkpoint")
