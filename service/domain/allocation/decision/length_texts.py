"""Explanation of the place of a job of unknown length among others: run times of ended jobs of its class."""

from __future__ import annotations

from statistics import median

from headway.contract.values.quantities import duration
from service.domain.allocation.inputs.round import Round
from service.domain.jobs.job import class_of
from service.domain.policies.registry import DEFAULT


def length_text(round_: Round, row: int) -> str:
    """Return the run times by which the default policy ranks a job of unknown length.

    The text is empty under another policy, and if the script says how long it trains or no job of its class has ended.
    """
    job = round_.jobs[row]
    if round_.snapshot.policy.name != DEFAULT or job.progress.work_total is not None:
        return ""
    name = class_of(job.spec)
    run_s = [one.run_s for one in round_.snapshot.ended_runs if one.job_class == name]
    if not run_s:
        return ""
    ended = "1 ended job" if len(run_s) == 1 else f"{len(run_s)} ended jobs"
    return f"shorter jobs go first, and {ended} of its class took {duration(median(run_s))} at the median"
