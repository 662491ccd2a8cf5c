"""Explanation of the place of a job of unknown length among others: run times of ended jobs of its class."""

from __future__ import annotations

from statistics import median

from headway.contract.values.quantities import duration
from service.domain.allocation.inputs.round import Round
from service.domain.jobs.job import class_of
from service.domain.policies.framework.work_left import LEAST_OWN_JOBS
from service.domain.policies.registry import DEFAULT


def length_text(round_: Round, row: int) -> str:
    """Return the run times by which the default policy ranks a job of unknown length.

    The text is empty under another policy, if the script says how long it trains, and if too few jobs of its class have
    ended for the policy to learn from (`LEAST_OWN_JOBS`).
    """
    job = round_.jobs[row]
    if round_.snapshot.policy.name != DEFAULT or job.progress.work_total is not None:
        return ""
    own = class_of(job.spec), job.spec.run
    run_s = [one.run_s for one in round_.snapshot.ended_runs if (one.job_class, one.run) == own]
    if len(run_s) < LEAST_OWN_JOBS:
        return ""
    took = f"{len(run_s)} ended jobs of its class took {duration(median(run_s))} at the median"
    return f"shorter jobs go first, and {took}"
