"""Evidence that a script resumes from its saved state: its reported steps and the user's statement."""

from __future__ import annotations

from headway.contract.run_facts import ProgressSource, Resumption
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.job import Job

FEWEST_STEPS = 10
"""Number of steps before a stop below which a script proves nothing: a fresh start may report its first step
late.
"""


def resumption(progress: JobProgress, *, began_at: int, generation: int) -> Resumption | None:
    """Return the evidence of a script that was stopped at `progress.samples` and first reported `began_at` in
    `generation`.

    A script resumes if it kept at least half of its work. A fresh start keeps nothing, but the step of its
    first report may vary a little. A script that loses most of its work is not a candidate for an optional
    restart either. Return None if the script had done too little to tell.
    """
    first = progress.first_samples
    if first is None:
        return None
    done, kept = progress.samples - first, began_at - first
    if done < FEWEST_STEPS * (progress.global_batch or 1):
        return None
    return Resumption(
        generation=generation,
        first=first,
        stopped_at=progress.samples,
        began_at=began_at,
        resumes=2 * kept >= done,
    )


def resumes(job: Job) -> bool | None:
    """Return whether the job continues after a stop; None if unknown.

    The user's statement takes precedence; otherwise the library always restores its checkpoints.
    """
    if job.spec.resumes is not None:
        return job.spec.resumes
    if job.progress.source is ProgressSource.LIBRARY:
        return True
    return None if job.progress.resumption is None else job.progress.resumption.resumes


def evidence(job: Job) -> str:
    """Return the evidence for or against resumption, as a clause without a full stop."""
    seen = job.progress.resumption
    if job.spec.resumes is not None:
        return f"its job file says resumes: {str(job.spec.resumes).lower()}"
    if job.progress.source is ProgressSource.LIBRARY:
        return "the training library restores its checkpoints"
    if seen is None:
        return "it has not been stopped and started again since it began to report steps"
    went = "went on" if seen.resumes else "began again"
    return f"it {went} at step {seen.began_at:,} after a stop at step {seen.stopped_at:,}"


def stop_text(job: Job) -> str:
    """Return the predicate for stopping a running job, as far as its behaviour is known."""
    if job.progress.source is ProgressSource.LIBRARY:
        return "saves a checkpoint and stops"
    return "is stopped with SIGTERM; whether it saves a checkpoint is unknown"


def kept_text(job: Job) -> str:
    """Return the predicate for the work that a job without slots has kept."""
    saved = job.progress.checkpoint_samples
    if job.progress.source is ProgressSource.LIBRARY or saved:
        return (
            f"goes on from the checkpoint at {saved:,} samples"
            if saved
            else "begins again: no checkpoint yet"
        )
    if resumes(job) is None:
        return "starts again; whether it saved a checkpoint is unknown"
    return f"starts again; {evidence(job)}"
