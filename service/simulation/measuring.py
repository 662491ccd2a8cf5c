"""What ranks would have measured: steps of what ran, with noise, of each job and of its class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.perf.fit import Observations
from service.domain.perf.tables import Observed
from service.domain.policies.policy import Configurations
from service.simulation.jobs import Jobs
from service.simulation.world import Application, Steps, World

_SAMPLES_A_SLOT = 64.0
"""Of a step, where only speed is known of an application."""
_APART = 2.0
"""Batches that differ by less than the second root of 2 are one entry."""
_ENOUGH_STEPS = 10.0
"""An entry of fewer is completed before it counts: so models are fitted once for each."""
_FIELDS = 9


def steps_of(application: Application, configurations: Configurations) -> tuple[Steps, float]:
    """The steps of an application, and how many of the samples in them are a reference sample.

    Where only its speed is known: a second each on its slowest configuration, of one fixed batch that can be spread over
    all slots, whatever a reference sample is.
    """
    if application.steps is not None:
        return application.steps, 1.0
    batch = _SAMPLES_A_SLOT * float(configurations.slots.max(initial=1))
    runs = application.goodput > 0
    shape = application.goodput.shape
    slowest = float(np.where(runs, application.goodput, np.inf).min(initial=np.inf)) if runs.any() else 1.0
    steps = Steps(
        global_batch=np.where(runs, batch, np.nan),
        accumulation=np.ones(shape),
        step_s=np.where(runs, slowest / np.where(runs, application.goodput, 1.0), np.nan),
        sync_s=np.full(shape, np.nan),
        noise_scale=np.full(shape[0], np.nan),
        reference_batch=batch,
        max_batch=batch,
        max_local=np.full(len(configurations.kinds), np.inf),
    )
    return steps, batch / slowest


@dataclass(frozen=True, slots=True)
class News:
    """The jobs that were measured on something new, those that showed new gradient noise, and the applications that were
    measured on something new.
    """

    measured: IntArray
    heard: IntArray
    classes: IntArray


class Measurements:
    """One entry for every job, column and batch that ran long enough, in the order in which they came; of a class, the
    first of its jobs on a column and batch, so that it does not grow with them.
    """

    def __init__(self, world: World, steps: list[Steps], jobs: Jobs) -> None:
        self._jobs, self._configurations = jobs, world.configurations
        self._noise = world.rules.measurement_noise
        self._random = np.random.default_rng([world.seed, 2])
        self._kinds = len(world.kinds)
        phases = max((len(one.step_s) for one in steps), default=1)
        self._batch = _padded([one.global_batch for one in steps], phases)
        self._step_s = _padded([one.step_s for one in steps], phases)
        self._sync_s = _padded([one.sync_s for one in steps], phases)
        self._passes = _padded([one.accumulation for one in steps], phases)
        self._phi = _padded([one.noise_scale for one in steps], phases)
        self.tried = np.zeros((len(world.arrivals), len(world.configurations.slots)), dtype=np.bool_)
        """(J, C) what each job was measured on."""
        self.tried_by_class = np.zeros((len(steps), len(world.configurations.slots)), dtype=np.bool_)
        """(A, C) what jobs of each application were measured on."""
        self._own: dict[int, dict[tuple[int, int], tuple[float, ...]]] = {}
        self._shared: dict[int, dict[tuple[int, int], tuple[float, ...]]] = {}
        self._own_phi = np.full(len(world.arrivals), np.nan)
        self._heard = np.full(len(world.arrivals), -1, dtype=np.int64)
        self._class_phi = np.full(len(steps), np.nan)

    def measure(self, rows: IntArray, phase: IntArray) -> News:
        """What `rows` (n,), in these phases (n,) and advanced to now, show of themselves."""
        column, application = self._jobs.column[rows], self._jobs.application[rows]
        at = (application, phase, np.maximum(column, 0))
        step_s = self._step_s[at]
        trained_s = np.where(
            column == NOTHING, 0.0, self._jobs.held_until_s[rows] - self._jobs.trains_from_s[rows]
        )
        shows = np.flatnonzero(np.isfinite(step_s) & (trained_s >= _ENOUGH_STEPS * step_s))
        batch = self._batch[at]
        size = np.rint(_APART * np.log2(np.where(np.isfinite(batch), batch, 1.0))).astype(np.int64)
        heard = self._hear(rows[shows], application[shows], phase[shows])
        jobs: set[int] = set()
        classes: set[int] = set()
        for index in shows.tolist():
            row, key = int(rows[index]), (int(column[index]), int(size[index]))
            entries = self._own.setdefault(row, {})
            if key in entries:
                continue
            where = (int(application[index]), int(phase[index]), key[0])
            entries[key] = self._entry(where, float(trained_s[index] / step_s[index]))
            self.tried[row, key[0]] = True
            jobs.add(row)
            if key not in self._shared.setdefault(where[0], {}):
                self._shared[where[0]][key] = entries[key]
                self.tried_by_class[where[0], key[0]] = True
                classes.add(where[0])
        return News(_sorted(jobs), heard, _sorted(classes))

    def of_jobs(self, rows: IntArray) -> Observations:
        """What is known of each (n,): an owner is a job on a kind."""
        return self._observations([self._own.get(row, {}) for row in rows.tolist()])

    def of_classes(self) -> Observations:
        """What is known of the applications (A,): an owner is an application on a kind."""
        return self._observations([self._shared.get(index, {}) for index in range(len(self._class_phi))])

    def known(self, rows: IntArray) -> BoolArray:
        """(n,) whether each, or a job of its class, was measured at all."""
        classes = self._jobs.application[rows].tolist()
        of_class = np.array([bool(self._shared.get(index)) for index in classes], dtype=np.bool_)
        return np.asarray(self.tried[rows].any(axis=1) | of_class)

    def noise_of(self, rows: IntArray) -> FloatArray:
        """(n,) gradient noise scale as last measured, by a job itself or else in its class; NaN where never."""
        own = self._own_phi[rows]
        return np.where(np.isnan(own), self._class_phi[self._jobs.application[rows]], own)

    def _entry(self, at: tuple[int, int, int], steps: float) -> tuple[float, ...]:
        error = float(np.exp(self._noise * self._random.standard_normal()))
        column, batch, passes = at[2], self._batch[at], self._passes[at]
        slots = float(self._configurations.slots[column])
        return (
            float(self._configurations.kind[column]),
            slots,
            float(self._configurations.nodes[column]),
            float(batch / slots / passes),
            float(passes - 1),
            float(self._step_s[at]) * error,
            float(self._sync_s[at]) * error,
            steps,
            float(batch),
        )

    def _hear(self, rows: IntArray, application: IntArray, phase: IntArray) -> IntArray:
        """Those of `rows` (n,) that measured the gradient noise of another phase than before, as noisily as time."""
        phi = self._phi[application, phase]
        fresh = np.isfinite(phi) & (self._heard[rows] != phase)
        rows, application = rows[fresh], application[fresh]
        self._heard[rows] = phase[fresh]
        phi = phi[fresh] * np.exp(self._noise * self._random.standard_normal(len(rows)))
        self._own_phi[rows] = self._class_phi[application] = phi
        return rows

    def _observations(self, owners: list[dict[tuple[int, int], tuple[float, ...]]]) -> Observations:
        entries = [(index, *one) for index, mine in enumerate(owners) for one in mine.values()]
        table = np.array(entries, dtype=np.float64).reshape(len(entries), _FIELDS + 1)
        return Observations(
            owner=(table[:, 0] * self._kinds + table[:, 1]).astype(np.int64),
            slots=table[:, 2],
            nodes=table[:, 3],
            local_batch=table[:, 4],
            accumulation=table[:, 5],
            step_s=table[:, 6],
            sync_s=table[:, 7],
            count=table[:, 8],
        )

    def observed(self, rows: IntArray) -> Observed:
        """What `rows` (n,) measured on exactly one configuration."""
        entries = [
            (index, column, one[8] / one[5], one[8], one[7])
            for index, row in enumerate(rows.tolist())
            for (column, _), one in self._own.get(row, {}).items()
        ]
        table = np.array(entries, dtype=np.float64).reshape(len(entries), 5)
        return Observed(
            job=table[:, 0].astype(np.int64),
            column=table[:, 1].astype(np.int64),
            samples_per_s=table[:, 2],
            global_batch=table[:, 3],
            steps=table[:, 4],
        )


def _sorted(rows: set[int]) -> IntArray:
    return np.array(sorted(rows), dtype=np.int64)


def _padded(tables: list[FloatArray], phases: int) -> FloatArray:
    """(A, E, ...) with the last phase of shorter ones repeated."""
    return np.stack([one[np.minimum(np.arange(phases), len(one) - 1)] for one in tables])
