"""The simulated world in which a live run is replayed: its submits, and the measurements of that run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import numpy as np

from benchmarks.agreement_live import FinishedJob, Run
from headway.contract.views.jobs import EventView
from service.domain.perf.efficiency import efficiency
from service.domain.policies.framework.policy import Configurations
from service.loops.scheduler import Intervals
from service.simulation.model.clusters import configurations_of
from service.simulation.model.world import (
    Application,
    Arrival,
    BatchStages,
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
    step_s: Mapping[tuple[int, int], float],
    start_s: float,
    end_s: float,
) -> Application:
    progress, batches = job.job.progress, _batches(job)
    work = progress.total_progress or progress.total_samples
    assert work is not None, "the script uses the library"
    times = np.array([[step_s[slots, batch] for slots in configurations.slots.tolist()] for batch in batches])
    noise_scale = math.nan if job.noise_scale is None else job.noise_scale
    batch = np.array(batches, dtype=np.float64)
    goodput = batch[:, None] * efficiency(batch, batch[0], noise_scale)[:, None] / times
    best = goodput.argmax(axis=0)
    columns = np.arange(len(best))
    return Application(
        name=job.job.name,
        boundaries=np.array([0.0, float(work)]),
        goodput=goodput[None, best, columns],
        restart_s=start_s,
        end_s=end_s,
        steps=Steps(
            global_batch=batch[None, best],
            accumulation=np.ones((1, len(best))),
            step_s=times[None, best, columns],
            sync_s=np.full((1, len(best)), np.nan),
            noise_scale=np.array([noise_scale]),
            reference_batch=float(batch[0]),
            max_batch=float(batch[-1]),
            max_local=np.array([np.inf]),
            stages=BatchStages(batch=batch, step_s=times[None], goodput=goodput[None]),
        ),
    )


def _batches(job: FinishedJob) -> list[int]:
    """Return the batches that a job may have: its own and its doublings up to the bound, or its only one."""
    batch, present = job.job.spec.batch, job.job.progress.global_batch
    if batch.global_ is None or batch.max_global is None:
        assert present is not None, "the script uses the library"
        return [present]
    doublings = int(math.log2(batch.max_global / batch.global_))
    return [batch.global_ << doubling for doubling in range(doublings + 1)]


def _all_step_s(jobs: Sequence[FinishedJob], sizes: Sequence[int]) -> list[dict[tuple[int, int], float]]:
    """Return the seconds of a step of each job by slots and batch.

    A size that a job with one batch never had follows from its known step time and the median ratio of the other jobs.
    A job with several batches takes a constant and a time for each sample of a slot, fitted to its measurements.
    """
    known = [{slots: one.step_s[slots, batch] for slots, batch in one.step_s} for one in jobs]
    fixed = [times for one, times in zip(jobs, known, strict=True) if len(_batches(one)) == 1]
    ratios = {
        size: _median((one[size] / one[1] for one in fixed if {1, size} <= set(one)), 1.0) for size in sizes
    }
    found: list[dict[tuple[int, int], float]] = []
    for one, times in zip(jobs, known, strict=True):
        if len(batches := _batches(one)) == 1:
            base = times[min(times)]
            found.append({(size, batches[0]): times.get(size, ratios[size] * base) for size in sizes})
        else:
            fitted = _fitted(one.step_s)
            found.append(
                {
                    (size, batch): one.step_s.get((size, batch), fitted[0] + fitted[1] * batch / size)
                    for size in sizes
                    for batch in batches
                }
            )
    return found


def _fitted(step_s: Mapping[tuple[int, int], float]) -> tuple[float, float]:
    """Return the seconds of a step without samples and those of a sample of a slot, by least squares."""
    samples = np.array([batch / slots for slots, batch in step_s])
    times = np.array(list(step_s.values()))
    if np.ptp(samples) == 0:
        return 0.0, float(times.mean() / samples[0])
    slope = float(np.cov(samples, times, bias=True)[0, 1] / samples.var())
    return float(times.mean() - slope * samples.mean()), slope


def _starts_s(
    jobs: Sequence[FinishedJob], step_s: Sequence[Mapping[tuple[int, int], float]]
) -> Iterator[float]:
    """Yield the seconds from each grant to the begin of the first step; the event is reported at the step's end."""
    for one, times in zip(jobs, step_s, strict=True):
        for granted, first in _pairs(one.events, "allocate", "first_step"):
            yield _since(first.at, granted.at) - times[granted.data["slots"], _batches(one)[0]]


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
