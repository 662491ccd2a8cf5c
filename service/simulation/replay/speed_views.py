"""Views of a policy on the speed of jobs: the truth, or the models that the service would have learned by then.

In the learned view, all past steps were measured with noise. Models are fitted to the measurements of a class
and of its jobs, and sizes are tried step by step, all by the code of the service (`service.domain.perf`). As
in the service, the batch of a running job follows its measurements: it trains with the best batch, even if
the model does not know it yet.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

import numpy as np

from service.domain.allocation.inputs.notes import MIN_GAIN
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.perf.exploration import credible, explore, optimistic_goodput
from service.domain.perf.fit import fit
from service.domain.perf.observations import Observations
from service.domain.perf.tables import JobModels, goodput_table
from service.domain.perf.throughput import ThroughputModel, prior
from service.domain.perf.transfer import across_kinds
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.world import Steps, World
from service.simulation.replay.jobs import ReplayJobs, Tables
from service.simulation.replay.measuring import Measurements, steps_of


class SpeedView(Protocol):
    """Interface through which a policy sees the speed of the jobs."""

    def look(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return goodput (n, C) and the configurations allowed now (n, C), of jobs in these phases (n,)."""
        ...

    def knows(self, rows: IntArray) -> BoolArray:
        """Return for which jobs the speed is known at all (n,)."""
        ...

    def pace(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the median and the 10th percentile of the goodput (n, C), after `look`."""
        ...

    def sizes(self, rows: IntArray) -> BoolArray:
        """Return the mask (n, C) of sizes on which each job may run at all."""
        ...

    def measured(self, rows: IntArray) -> BoolArray:
        """Return the mask (n, C) of sizes that each job, or another job of its class, has run on."""
        ...


def sizes_of(world: World, tables: Tables) -> BoolArray:
    """Return the mask (J, C) of sizes on which each job may run: its application can, and its bounds allow the slots."""
    slots = world.configurations.slots
    least = np.array([one.min_slots for one in world.arrivals], dtype=np.int64)
    most = np.array([one.max_slots or np.iinfo(np.int64).max for one in world.arrivals], dtype=np.int64)
    application = np.array([one.application for one in world.arrivals], dtype=np.int64)
    runs = tables.goodput[:, 0] > 0
    return np.asarray(runs[application] & (slots >= least[:, None]) & (slots <= most[:, None]))


class Oracle:
    """View of the true goodput of each job's present phase on all configurations."""

    def __init__(self, world: World, tables: Tables, jobs: ReplayJobs) -> None:
        self._tables, self._jobs = tables, jobs
        self._sizes = sizes_of(world, tables)

    def look(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return goodput and allowed columns, as in `SpeedView`."""
        allowed = self._sizes[rows]
        return np.where(allowed, self._tables.goodput[self._jobs.application[rows], phase], 0.0), allowed

    def knows(self, rows: IntArray) -> BoolArray:
        """Return true for all jobs, as in `SpeedView`."""
        return np.ones(len(rows), dtype=np.bool_)

    def measured(self, rows: IntArray) -> BoolArray:
        """Return all sizes as measured, as in `SpeedView`."""
        return self._sizes[rows]

    def pace(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the true goodput twice, as in `SpeedView`."""
        goodput, _ = self.look(rows, phase)
        return goodput, goodput

    def sizes(self, rows: IntArray) -> BoolArray:
        """Return the sizes of the jobs, as in `SpeedView`."""
        return self._sizes[rows]


class LearnedView:
    """View of the past measurements and the models fitted to them."""

    def __init__(self, world: World, tables: Tables, jobs: ReplayJobs) -> None:
        self._world, self._jobs = world, jobs
        self._sizes = sizes_of(world, tables)
        known = [steps_of(one, world.configurations) for one in world.applications]
        self._steps: list[Steps] = [steps for steps, _ in known]
        self._samples = np.array([samples for _, samples in known])
        """Samples of a step that equal a reference sample (A,)."""
        self._measured = Measurements(world, self._steps, jobs)
        shape = (len(world.arrivals), len(world.configurations.slots))
        self._goodput, self._low, self._high = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        number = (shape[0], len(world.kinds))
        self._models = prior(compute_s=np.ones(number), local_batch=np.ones(number))
        self._fitted_now = np.zeros(shape[0], dtype=np.bool_)
        self._known_now = np.zeros(shape[0], dtype=np.bool_)
        """Mask of jobs whose rows of the goodput tables are current. `_fitted_now` marks current models."""
        self._class_models = self._fitted(self._measured.of_classes(), len(self._steps), None)

    def look(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, BoolArray]:
        """Measure the jobs and return goodput and allowed columns, as in `SpeedView`."""
        new = self._measured.measure(rows, phase)
        if new.classes.size:
            self._class_models = self._fitted(self._measured.of_classes(), len(self._steps), None)
            # A job without measurements of its own uses the model of its class.
            fresh = rows[~self._measured.tried[rows].any(axis=1)]
            self._fitted_now[fresh[np.isin(self._jobs.application[fresh], new.classes)]] = False
        self._fitted_now[new.measured] = False
        self._known_now[new.noise_measured] = False
        stale = rows[~(self._known_now[rows] & self._fitted_now[rows])]
        if len(stale):
            self._learn(stale)
        return self._offer(rows)

    def knows(self, rows: IntArray) -> BoolArray:
        """Return which jobs are known, as in `SpeedView`."""
        return self._measured.known(rows)

    def measured(self, rows: IntArray) -> BoolArray:
        """Return the measured sizes, as in `SpeedView`."""
        alike = self._measured.tried_by_class[self._jobs.application[rows]]
        return np.asarray(self._measured.tried[rows] | alike)

    def pace(self, rows: IntArray, phase: IntArray) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Return the learned goodput, as in `SpeedView`."""
        return self._goodput[rows], self._low[rows]

    def sizes(self, rows: IntArray) -> BoolArray:
        """Return the sizes of the jobs, as in `SpeedView`."""
        return self._sizes[rows]

    def _learn(self, rows: IntArray) -> None:
        """Recompute the tables of `rows` (n,), and the models of jobs with new measurements."""
        unfitted = rows[~self._fitted_now[rows]]
        if len(unfitted):
            before = self._class_models[self._jobs.application[unfitted]]
            new = self._fitted(self._measured.of_jobs(unfitted), len(unfitted), before)
            for one in fields(new):
                getattr(self._models, one.name)[unfitted] = getattr(new, one.name)
        configurations = self._world.configurations
        steps = [self._steps[index] for index in self._jobs.application[rows].tolist()]
        reference = np.array([one.reference_batch for one in steps])
        models = JobModels(
            throughput=self._models[rows],
            noise_scale=self._measured.noise_of(rows),
            reference_batch=reference,
            global_batch=reference,
            max_global=np.array([one.max_batch for one in steps]),
            max_local=np.stack([one.max_local for one in steps]),
            adapts=np.array([one.max_batch > one.reference_batch for one in steps], dtype=np.bool_),
            shares=None if configurations.parts is None else np.tile((0.0, np.inf), (len(rows), 1)),
        )
        table = goodput_table(models, configurations, self._measured.observed(rows))
        samples = self._samples[self._jobs.application[rows], None]
        self._goodput[rows], self._high[rows] = table.goodput / samples, table.high / samples
        self._low[rows] = table.low / samples
        self._fitted_now[rows] = self._known_now[rows] = True

    def _fitted(
        self, observations: Observations, owners: int, before: ThroughputModel | None
    ) -> ThroughputModel:
        """Return the models (owners, K). `before` (owners, K) is the prior."""
        kinds = len(self._world.kinds)
        number = owners * kinds
        grid = np.arange(number).reshape(owners, kinds)
        flat = None if before is None else before[np.divmod(np.arange(number), kinds)]
        return across_kinds(fit(observations, number, flat)[grid])

    def _offer(self, rows: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return goodput and allowed columns, with the same hysteresis as a round: a gain within noise counts as none."""
        current, slots = self._jobs.column[rows], self._world.configurations.slots
        goodput, low, high = self._goodput[rows], self._low[rows], self._high[rows]
        sizes = self._sizes[rows]
        tried = self._measured.tried[rows]
        alike = self._measured.tried_by_class[self._jobs.application[rows]]
        high = credible(self._world.configurations, goodput=goodput, low=low, high=high, known=tried | alike)
        allowed = explore(
            self._world.configurations,
            allowed=sizes & (goodput > 0),
            tried=tried,
            alike=alike,
            current=current,
            goodput=goodput,
            high=high,
        ).mask
        goodput = optimistic_goodput(self._world.configurations, goodput, high, tried | alike)
        running = np.flatnonzero(current != NOTHING)
        held = current[running]
        now = goodput[running, held][:, None]
        near = goodput[running] < MIN_GAIN * now
        allowed[running] &= ~(near & (slots >= slots[held][:, None]))
        allowed[running, held] = True
        goodput[running] = np.where(near & (goodput[running] > now), now, goodput[running])
        return goodput, allowed
