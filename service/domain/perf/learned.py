"""Conversion of measurements to throughput models of the jobs of a round, with each job's class as a prior. Pure.

There are three layers, each the prior of the next: a class's jobs on a kind, one job on a kind, and the
measurements of exactly one configuration. A kind that a job never ran on takes its model from the kinds that
the job ran on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.perf.batch import noise_of
from service.domain.perf.fit import Observations, fit
from service.domain.perf.tables import JobModels
from service.domain.perf.throughput import ThroughputModel
from service.domain.perf.transfer import across_kinds
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_USUAL_BATCH = 64
"""Samples of a step where neither the job file nor a measurement gives them. Only ratios of speeds matter then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedModels:
    """Learned models of the jobs of a round (J,) on its kinds.

    Attributes:
        models: Models for the goodput table.
        measured: True where the job itself has measurements that count (J,).
        related: True where jobs of its class have such measurements (J,).
    """

    models: JobModels
    measured: BoolArray
    related: BoolArray


def learn(
    jobs: Sequence[Job],
    kinds: Sequence[str],
    measurements: Mapping[str, tuple[Measurement, ...]],
    class_measurements: Mapping[str, tuple[Measurement, ...]],
) -> LearnedModels:
    """Return the models of every job on every kind; the keys of `class_measurements` are results of `class_of`."""
    classes = sorted({class_of(job.spec) for job in jobs})
    of_class = job_classes(jobs)
    own = [[one for one in measurements.get(job.id, ()) if one.believable] for job in jobs]
    shared = [[one for one in class_measurements.get(name, ()) if one.believable] for name in classes]
    related = np.array([bool(shared[index]) for index in of_class], dtype=np.bool_)
    batches = [
        _reference(job, mine or shared[index]) for job, mine, index in zip(jobs, own, of_class, strict=True)
    ]
    of_classes = [_noise(ones) for ones in shared]
    noise = [_noise(mine, of_classes[index]) for index, mine in zip(of_class, own, strict=True)]
    bounds = [job.spec.batch.max_local or math.inf for job in jobs]
    return LearnedModels(
        models=JobModels(
            throughput=_fitted(own, kinds, _fitted(shared, kinds)[of_class], related),
            noise_scale=np.array(noise, dtype=np.float64),
            reference_batch=np.array([batch or math.nan for batch in batches], dtype=np.float64),
            global_batch=_floats(job.progress.global_batch for job in jobs),
            max_global=_floats(_most(job) for job in jobs),
            max_local=np.repeat(np.array(bounds, dtype=np.float64)[:, None], len(kinds), axis=1),
            adapts=np.array([job.adapts for job in jobs], dtype=np.bool_),
        ),
        measured=np.array([bool(mine) for mine in own], dtype=np.bool_),
        related=related,
    )


def batch_of(measurement: Measurement) -> int:
    """Return the samples of a step in a measurement."""
    return measurement.global_batch or _USUAL_BATCH


def _fitted(
    owners: Sequence[Sequence[Measurement]],
    kinds: Sequence[str],
    before: ThroughputModel | None = None,
    guided: BoolArray | None = None,
) -> ThroughputModel:
    """Return the models (owners, kinds). A kind that an owner never ran on takes its model from the other kinds.

    Owners that are `guided` have `before` (owners, kinds) as their prior. The others start from the
    optimistic prior.
    """
    shape = (len(owners), len(kinds))
    number = len(owners) * len(kinds)
    observations = _observations(owners, kinds)
    grid = np.arange(number).reshape(shape)
    if before is None or guided is None or not guided.any():
        models = fit(observations, number)
    else:
        # Each owner is fitted once: a fit skips owners without observations.
        own_way = np.repeat(guided, len(kinds))
        by_class = own_way[observations.owner]
        flat = before[np.divmod(np.arange(number), max(len(kinds), 1))]
        models = fit(observations[by_class], number, flat).where(
            own_way, fit(observations[~by_class], number)
        )
    return across_kinds(models[grid]) if number else models[grid]


def _observations(owners: Sequence[Sequence[Measurement]], kinds: Sequence[str]) -> Observations:
    rows: list[tuple[float, ...]] = []
    for index, mine in enumerate(owners):
        for one in mine:
            if one.device_kind in kinds:
                batch = batch_of(one)
                passes = max(one.accumulation, 1)
                rows.append(
                    (
                        index * len(kinds) + kinds.index(one.device_kind),
                        one.slots,
                        one.nodes,
                        one.local_batch or max(1.0, batch / one.slots / passes),
                        passes - 1,
                        batch / one.samples_per_s,
                        math.nan if one.sync_s is None else one.sync_s,
                        one.steps,
                    )
                )
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 8)
    return Observations(
        owner=table[:, 0].astype(np.int64),
        slots=table[:, 1],
        nodes=table[:, 2],
        local_batch=table[:, 3],
        accumulation=table[:, 4],
        step_s=table[:, 5],
        sync_s=table[:, 6],
        count=table[:, 7],
    )


def _reference(job: Job, known: Sequence[Measurement]) -> int | None:
    """Return the samples of a step as the user wrote it.

    If only the script knows them, return those of the first measured steps, of the job or else of its class.
    Return None where each rank has a batch of its own, so that the batch of a step is proportional to the
    slots.
    """
    if job.spec.progress.batch == "per-rank":
        return None
    oldest = min(known, key=lambda one: one.generation, default=None)
    return job.spec.batch.global_ or (batch_of(oldest) if oldest is not None else job.progress.global_batch)


def _most(job: Job) -> int | None:
    """Return the upper bound of the global batch: the smaller of the job file's bound and the bound of its ranks."""
    bounds = [one for one in (job.spec.batch.max_global, job.progress.max_global_batch) if one]
    return min(bounds, default=None)


def _noise(measurements: Sequence[Measurement], otherwise: float = math.nan) -> float:
    """Return the newest gradient noise scale in samples, or `otherwise`, that of the class, if none is known."""
    for one in reversed(measurements):
        noise = noise_of(one)
        if noise is not None and noise.known:
            return noise.scale
    return otherwise


def _floats(values: Iterable[float | None]) -> FloatArray:
    return np.array([math.nan if one is None else one for one in values], dtype=np.float64)


def job_classes(jobs: Sequence[Job]) -> IntArray:
    """Return the index (J,) of each job's class among the classes present."""
    names = [class_of(job.spec) for job in jobs]
    order = {name: index for index, name in enumerate(sorted(set(names)))}
    return np.array([order[name] for name in names], dtype=np.int64)
