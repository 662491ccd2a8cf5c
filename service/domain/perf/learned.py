"""Conversion of measurements to throughput models of the jobs of a round, with each job's class as a prior. Pure.

There are three layers, each the prior of the next: a class's jobs on a kind, one job on a kind, and the
measurements of exactly one configuration. A kind that a job never ran on takes its model from the kinds that
the job ran on. Models describe steps with whole gradients, so jobs of a class may differ in their depth of back-propagation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headway.contract.run_facts import ProgressSource
from headway.contract.spec_parts import Balance
from headway.contract.values.devices import slots_by_kind
from headway.contract.values.topology import level_number
from service.domain.cluster.snapshot import LossHistory, Measurement
from service.domain.jobs.job import Job, class_of
from service.domain.perf.batch import bounded_log, noise_of
from service.domain.perf.batch_evidence import measured_effects
from service.domain.perf.depth import whole_step_s
from service.domain.perf.efficiency import countable
from service.domain.perf.levels import FittedSpeeds, combined, fit_with_levels
from service.domain.perf.observations import Observations
from service.domain.perf.tables import JobModels
from service.domain.perf.transfer import across_kinds
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_USUAL_BATCH = 64
"""Samples of a step in the models where neither the job file nor a measurement gives them. The job counts in steps then."""


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
    loss_histories: Mapping[str, tuple[LossHistory, ...]] = MappingProxyType({}),
) -> LearnedModels:
    """Return the models of every job on every kind.

    The keys of `class_measurements` and `loss_histories` are results of `class_of`.
    """
    classes = sorted({class_of(job.spec) for job in jobs})
    of_class = job_classes(jobs)
    own = [_own(job, measurements.get(job.id, ())) for job in jobs]
    shared = [[one for one in class_measurements.get(name, ()) if one.believable] for name in classes]
    related = np.array([bool(shared[index]) for index in of_class], dtype=np.bool_)
    batches = [
        _reference(job, mine or shared[index]) for job, mine, index in zip(jobs, own, of_class, strict=True)
    ]
    of_classes = [_noise_of_class(ones) for ones in shared]
    # Without a noise scale, a step of a larger batch counts as one step of the reference.
    noise = [
        _expected_noise(job, mine, of_classes[index]) if job.scales_rate else math.nan
        for job, index, mine in zip(jobs, of_class, own, strict=True)
    ]
    bounds = [job.spec.batch.max_local or math.inf for job in jobs]
    noise_scale = np.array(noise, dtype=np.float64)
    work = [
        _work_of_sample(job, mine or shared[index])
        for job, mine, index in zip(jobs, own, of_class, strict=True)
    ]
    reference_batch = np.array([batch or math.nan for batch in batches], dtype=np.float64)
    effects = measured_effects(jobs, loss_histories, noise_scale, reference_batch)
    fitted = _fitted(own, kinds, _fitted(shared, kinds).of_rows(of_class), related)
    return LearnedModels(
        models=JobModels(
            throughput=fitted.models,
            noise_scale=noise_scale,
            reference_batch=reference_batch,
            global_batch=_floats(job.progress.global_batch for job in jobs),
            max_global=_floats(_most(job) for job in jobs),
            max_local=np.repeat(np.array(bounds, dtype=np.float64)[:, None], len(kinds), axis=1),
            adapts=np.array([job.adapts for job in jobs], dtype=np.bool_),
            shares=_shares(jobs),
            batch_effect=effects,
            counted_effect=_counted(jobs, effects),
            min_depth=_floats(job.spec.elastic.min_depth for job in jobs),
            reach=fitted.reach,
            sample_work=np.array(work, dtype=np.float64),
        ),
        measured=np.array([bool(mine) for mine in own], dtype=np.bool_),
        related=related,
    )


def _counted(jobs: Sequence[Job], effects: FloatArray | None) -> FloatArray:
    """Return the exponents of the efficiency by which ranks count: those of the last order, or of a start to come."""
    return np.array(
        [
            job.progress.batch_effect if job.allocation or effects is None else countable(float(effects[row]))
            for row, job in enumerate(jobs)
        ],
        dtype=np.float64,
    )


def batch_of(measurement: Measurement) -> int:
    """Return the samples of a step in a measurement."""
    return measurement.global_batch or _USUAL_BATCH


def rate_of(measurement: Measurement) -> float:
    """Return the measured speed in samples per second, in the samples of `batch_of`."""
    return measurement.samples_per_s * batch_of(measurement) / max(measurement.global_batch, 1)


def _fitted(
    owners: Sequence[Sequence[Measurement]],
    kinds: Sequence[str],
    before: FittedSpeeds | None = None,
    guided: BoolArray | None = None,
) -> FittedSpeeds:
    """Return the models (owners, kinds). A kind that an owner never ran on takes its model from the other kinds.

    Owners that are `guided` have `before` (owners, kinds) as their prior. The others start from the
    optimistic prior.
    """
    shape = (len(owners), len(kinds))
    number = len(owners) * len(kinds)
    observations, levels = _observations(owners, kinds)
    grid = np.arange(number).reshape(shape)
    if before is None or guided is None or not guided.any():
        models, reach = fit_with_levels(observations, levels, number)
    else:
        # Each owner is fitted once: a fit skips owners without observations.
        own_way = np.repeat(guided, len(kinds))
        by_class = own_way[observations.owner]
        flat = np.divmod(np.arange(number), max(len(kinds), 1))
        of_class = before.reach
        guided_models, guided_reach = fit_with_levels(
            observations[by_class],
            levels[by_class],
            number,
            before.models[flat],
            None if of_class is None else of_class[flat],
        )
        models, reach = fit_with_levels(observations[~by_class], levels[~by_class], number)
        models = guided_models.where(own_way, models)
        reach = combined(guided_reach, reach, own_way)
    return FittedSpeeds(
        across_kinds(models[grid]) if number else models[grid],
        None if reach is None else reach[grid],
    )


def _own(job: Job, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the believable measurements of a job, at the depth of its job file."""
    believed = [one for one in measurements if one.believable]
    min_depth = job.spec.elastic.min_depth
    return believed if min_depth is None else [replace(one, min_depth=min_depth) for one in believed]


def _observations(
    owners: Sequence[Sequence[Measurement]], kinds: Sequence[str]
) -> tuple[Observations, IntArray]:
    """Return the observations (O,) of the owners on the kinds, and the number of the level that each crossed."""
    rows: list[tuple[float, ...]] = []
    for index, mine in enumerate(owners):
        for kind, one in _of_kinds(mine, kinds):
            batch = batch_of(one)
            passes = max(one.accumulation, 1)
            known = one.local_batch if kind == one.device_kind else 0
            rows.append(
                (
                    index * len(kinds) + kinds.index(kind),
                    one.slots,
                    one.nodes,
                    known or max(1.0, batch / one.slots / passes),
                    passes - 1,
                    whole_step_s(batch / rate_of(one), one.sync_s, one.min_depth, one.slots),
                    math.nan if one.sync_s is None else one.sync_s,
                    one.steps,
                    level_number(one.crossed),
                )
            )
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 9)
    observations = Observations(
        owner=table[:, 0].astype(np.int64),
        slots=table[:, 1],
        nodes=table[:, 2],
        local_batch=table[:, 3],
        accumulation=table[:, 4],
        step_s=table[:, 5],
        sync_s=table[:, 6],
        count=table[:, 7],
    )
    return observations, table[:, 8].astype(np.int64)


def _of_kinds(measured: Sequence[Measurement], kinds: Sequence[str]) -> list[tuple[str, Measurement]]:
    """Return an owner's measurements with the kind whose model each one fits.

    A step on two kinds says little about either, so it fits none. Only an owner without any other measurement
    takes it as one of both kinds, with equal speeds: this gives its models their scale.
    """
    alone = [(one.device_kind, one) for one in measured if one.device_kind in kinds]
    return alone or [
        (kind, one) for one in measured for kind in slots_by_kind(one.device_kind, one.slots) if kind in kinds
    ]


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


def _work_of_sample(job: Job, known: Sequence[Measurement]) -> float:
    """Return the work of a sample in the unit in which the job counts: a job whose batch nobody knows counts steps."""
    oldest = min(known, key=lambda one: one.generation, default=None)
    if (
        oldest is None
        or oldest.global_batch
        or job.spec.batch.global_
        or job.spec.progress.batch == "per-rank"
    ):
        return 1.0
    return 1.0 / batch_of(oldest)


def _shares(jobs: Sequence[Job]) -> FloatArray | None:
    """Return `JobModels.shares`. Local batches are uneven only with the library."""
    if not any(job.spec.elastic.mix for job in jobs):
        return None
    shares = np.full((len(jobs), 2), np.nan)
    for row, job in enumerate(jobs):
        rule = job.spec.batch.balance or Balance()
        even = rule == "off" or job.progress.source is ProgressSource.SCRIPT
        if job.spec.elastic.mix:
            shares[row] = (
                (1.0, 1.0) if even or rule == "off" else (rule.min_share, rule.max_share or math.inf)
            )
    return shares


def _most(job: Job) -> int | None:
    """Return the upper bound of the global batch: the smaller of the job file's bound and the bound of its ranks."""
    bounds = [one for one in (job.spec.batch.max_global, job.progress.max_global_batch) if one]
    return min(bounds, default=None)


@dataclass(frozen=True, slots=True)
class _ClassNoise:
    """Gradient noise scales of a class in samples: the newest one, and the geometric mean over all steps. NaN: unknown."""

    newest: float
    mean: float


def _noise_of_class(measurements: Sequence[Measurement]) -> _ClassNoise:
    steps = sum(one.noise_steps for one in measurements)
    mean = math.exp(sum(one.log_noise_sum for one in measurements) / steps) if steps else math.nan
    return _ClassNoise(_newest_noise(measurements), mean)


def _expected_noise(job: Job, own: Sequence[Measurement], of_class: _ClassNoise) -> float:
    """Return the noise scale that is expected for the rest of a job, in samples.

    The noise scale usually grows during training. Therefore the mean of earlier jobs of the class counts for the share of
    the work that is left, in the logarithm, and the job's newest estimate for the share that is done.
    """
    newest = _newest_noise(own)
    if math.isnan(of_class.mean):
        return of_class.newest if math.isnan(newest) else newest
    total = job.progress.work_total
    if math.isnan(newest) or not total:
        return of_class.mean if math.isnan(newest) else newest
    done = min(job.progress.work_done / total, 1.0)
    return math.exp(done * bounded_log(newest) + (1.0 - done) * bounded_log(of_class.mean))


def _newest_noise(measurements: Sequence[Measurement]) -> float:
    """Return the newest known gradient noise scale in samples; NaN without one."""
    for one in reversed(measurements):
        noise = noise_of(one)
        if noise is not None and noise.known:
            return noise.scale
    return math.nan


def _floats(values: Iterable[float | None]) -> FloatArray:
    return np.array([math.nan if one is None else one for one in values], dtype=np.float64)


def job_classes(jobs: Sequence[Job]) -> IntArray:
    """Return the index (J,) of each job's class among the classes present."""
    names = [class_of(job.spec) for job in jobs]
    order = {name: index for index, name in enumerate(sorted(set(names)))}
    return np.array([order[name] for name in names], dtype=np.int64)
