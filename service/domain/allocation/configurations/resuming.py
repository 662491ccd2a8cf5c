"""Evidence for growth by restart: a job that must restart to grow needs a measured speed and proof that it
resumes.

A membership change in place costs a pause, and the model may try it. A restart of a script that does not load
its saved state costs all of its work, more than any gain. The scheduler may still shrink or move such a job
if nothing else frees the slots.
"""

from __future__ import annotations

from headway.contract.run_facts import ProgressSource
from headway.contract.spec import Resize
from service.domain.jobs.job import Job
from service.domain.jobs.resumption import evidence, resumes


def is_restarted(job: Job) -> bool:
    """Return True if a change of the running job's slots stops it and starts it anew."""
    return not job.live and job.spec.elastic.resize is not Resize.NEVER


def lacks_measurement(job: Job, *, measured: bool) -> bool:
    """Return True if the job may not grow because its speed at its present size is not `measured`."""
    return is_restarted(job) and not measured


def may_lose_its_work(job: Job) -> bool:
    """Return True if the job may not grow because there is no evidence that it resumes.

    A measured job without a source of its progress belongs to an earlier version, in which only the library
    reported it.
    """
    of_library = job.progress.source is not ProgressSource.SCRIPT
    unknown = resumes(job) is None and not of_library
    return is_restarted(job) and (unknown or resumes(job) is False)


def why_unmeasured(job: Job) -> str:
    """Return the reason that a job without a measured speed does not grow by itself."""
    return (
        "its speed at the present size is not measured, and it is not restarted on a guess; "
        f"headway resize {job.name} sets its size"
    )


def why_not_resumed(job: Job) -> str:
    """Return the reason that a job that may lose its work does not grow by itself."""
    known = "is not known to resume" if resumes(job) is None else "does not resume"
    return (
        f"it {known} after a restart ({evidence(job)}); say resumes: true in the job file if it does, or set its size: "
        f"headway resize {job.name}"
    )
