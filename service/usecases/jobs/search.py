"""Storage of the state of a job's configuration search, with an event for each change."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from headway.contract.views.forecasts import SearchPhase, SearchView
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.inputs.searching import search_view
from service.domain.jobs.job import Job, size_of
from service.usecases.jobs.events import record
from service.usecases.ports.transactions import Transaction

_WORTH_AN_EVENT = ("mode", "phase", "place", "global_batch", "visited", "shown", "skipped")
"""Fields whose change is worth an event. Figures that move with every measurement are not."""


def changed_search(round_: Round, job: Job) -> SearchView | None:
    """Return the state of the round's search for the job, or None if the job has it already."""
    step = round_.search.steps.get(job.id)
    if step is None:
        return None
    view = search_view(job, step, round_.columns, round_.search.batches.get(job.id))
    before = job.progress.search
    if before is not None and all(getattr(view, name) == getattr(before, name) for name in _WORTH_AN_EVENT):
        return None
    return view


async def record_search(tx: Transaction, round_: Round, job: Job, now: datetime) -> Job:
    """Return the locked job with the state of the round's search, and record an event if it has changed.

    The caller saves the job.
    """
    view = changed_search(round_, job)
    if view is None:
        return job
    job = replace(job, progress=job.progress.model_copy(update={"search": view}))
    await record(tx, job, "search", message=_message(view), now=now, data=view.model_dump(mode="json"))
    return job


def is_visiting(job: Job) -> bool:
    """Return True if the job's search is still visiting sizes, so that the job will not keep its present
    size.
    """
    return job.progress.search is not None and job.progress.search.phase is SearchPhase.VISITING


def awaits_measurement(job: Job) -> bool:
    """Return True if the job's search waits for measurements at the present size, not for slots."""
    search = job.progress.search
    if search is None or not is_visiting(job) or search.slots != size_of(job.allocation):
        return False
    return search.global_batch in {None, job.progress.global_batch}


def _message(view: SearchView) -> str:
    batch = "" if view.global_batch is None else f", batch {view.global_batch:,}"
    where = f"{view.place}{batch}: " if view.place else ""
    text = f"{where}{view.reason}"
    if view.phase is SearchPhase.SETTLED and view.visited:
        share = f", {view.overhead_share:.1%} of the run" if view.overhead_share is not None else ""
        text += f"; {view.visited} of {view.visits} visits took {view.time_s:.1f} s, {max(view.overhead_s, 0.0):.1f} s of them lost"
        text += share
    return text
