"""The simulated world in which a live run is replayed: its submits, and the measurements of that run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import numpy as np

from benchmarks.agreement_live import FinishedJob, Run
from headway.contract.views.jobs import EventView
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray
from service.loops.scheduler import Intervals
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import (
    Application,
    Arrival,
    ClusterRules,
    Kind,
    Latencies,
    Steps,
    View,
    World,
)


def world_of(run: Run) -> World:
    """Return the world with the jobs and slots of a run, without any of its decisions."""
    kinds = (Kind(name=run.device_kind, node_slots=(run.slots,)),)
    configurations = configurations_of(kinds)
    began_at = run.jobs[0].job.submitted_at
    step_s = _all_step_s(run.jobs, sorted(set(configurations.slots.tolist())))
    start_s = _median(_starts_s(run.jobs, step_s))
    end_s = _median(_since(one.job.finished_at, one.trained_at) for one in run.jobs)
    return World(
        kinds=kinds,
        configurations=configurations,
        applications=tuple(
            _application(one, configurations, times, start_s, end_s)
            for one, times in zip(run.jobs, step_s, strict=True)
        ),
        arrivals=tuple(
            Arrival(
                id=one.job.name,
                submit_s=_since(one.job.submitted_at, began_at),
                application=index,
                min_slots=one.job.spec.elastic.min,
                max_slots=one.job.spec.elastic.max,
            )
            for index, one in enumerate(run.jobs)
        ),
        rules=ClusterRules(
            interval_s=Intervals().round_max_interval_s,
            on_events=True,
            live_pause_s=_median(event.data["pause_s"] for event in _events(run.jobs, "switch")),
            view=View.LEARNED,
            measurement_noise=0.0,  # the profiles are measurements already
            latencies=_latencies(run.jobs),
        ),
    )


def _application(
    job: FinishedJob,
    configurations: Configurations,
    step_s: Mapping[int, float],
    start_s: float,
    end_s: float,
) -> Application:
    progress = job.job.progress
    batch, samples = progress.global_batch, progress.total_samples
    assert batch is not None and samples is not None, "the script uses the library"  # noqa: PT018
    times = np.array([[step_s[slots] for slots in configurations.slots.tolist()]])
    return Application(
        name=job.job.name,
        boundaries=np.array([0.0, float(samples)]),
        goodput=batch / times,
        restart_s=start_s,
        end_s=end_s,
        steps=_steps(float(batch), times),
    )


def _steps(batch: float, step_s: FloatArray) -> Steps:
    """Return steps of one batch size whose synchronisation time is unknown."""
    return Steps(
        global_batch=np.full(step_s.shape, batch),
        accumulation=np.ones(step_s.shape),
        step_s=step_s,
        sync_s=np.full(step_s.shape, np.nan),
        noise_scale=np.array([np.nan]),
        reference_batch=batch,
        max_batch=batch,
        max_local=np.array([np.inf]),
    )


def _all_step_s(jobs: Sequence[FinishedJob], sizes: Sequence[int]) -> list[dict[int, float]]:
    """Return the seconds of a step of each job by slots.

    For a size that a job never had, its known step time is scaled by the median ratio of the other jobs.
    """
    ratios = {
        size: _median((one.step_s[size] / one.step_s[1] for one in jobs if {1, size} <= set(one.step_s)), 1.0)
        for size in sizes
    }
    return [
        {size: one.step_s.get(size, ratios[size] * one.step_s[min(one.step_s)]) for size in sizes}
        for one in jobs
    ]


def _starts_s(jobs: Sequence[FinishedJob], step_s: Sequence[Mapping[int, float]]) -> Iterator[float]:
    """Yield the seconds from each grant to the begin of the first step; the event is reported at the step's end."""
    for one, times in zip(jobs, step_s, strict=True):
        for granted, first in _pairs(one.events, "allocate", "first_step"):
            yield _since(first.at, granted.at) - times[granted.data["slots"]]


def _latencies(jobs: Sequence[FinishedJob]) -> Latencies:
    grown, shrunk = [], []
    for one in jobs:
        for decided, switched in _pairs(one.events, "prepare", "switch"):
            if switched.data["to"] >= switched.data["from"]:
                grown.append(_since(switched.at, decided.at) - switched.data["pause_s"])
            else:
                free_at = min(at for at in one.released_at if at >= decided.at)
                shrunk.append(_since(free_at, decided.at))
    return Latencies(
        run_s=_median(_between(jobs, "allocate", "start")),
        grow_s=_median(grown),
        shrink_s=_median(shrunk),
        stop_s=_median(_between(jobs, "vacate", "requeue")),
    )


def _between(jobs: Sequence[FinishedJob], first: str, then: str) -> Iterator[float]:
    return (_since(after.at, before.at) for one in jobs for before, after in _pairs(one.events, first, then))


def _pairs(events: Sequence[EventView], first: str, then: str) -> Iterator[tuple[EventView, EventView]]:
    """Yield each event of kind `first` with the next one of kind `then`, if no other `first` comes between them."""
    before: EventView | None = None
    for event in events:
        if event.kind == first:
            before = event
        elif event.kind == then and before is not None:
            yield before, event
            before = None


def _events(jobs: Sequence[FinishedJob], kind: str) -> Iterator[EventView]:
    return (event for one in jobs for event in one.events if event.kind == kind)


def _median(values: Iterator[float] | Sequence[float], otherwise: float = 0.0) -> float:
    """Return the median, or `otherwise` without values."""
    found = list(values)
    return statistics.median(found) if found else otherwise


def _since(at: datetime | None, before: datetime) -> float:
    assert at is not None, "the job has ended"
    return (at - before).total_seconds()
