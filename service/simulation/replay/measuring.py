"""Simulated measurements of ranks: noisy step times of jobs and of their classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.snapshot import LEAST_STEPS
from service.domain.perf.observations import Observations
from service.domain.perf.tables import Observed
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.world import Application, Steps, World
from service.simulation.replay.jobs import ReplayJobs

_SAMPLES_A_SLOT = 64.0
"""Samples of a step for each slot, where only the speed of an application is known."""
_APART = 2.0
"""Resolution of batch sizes, in entries per doubling. Closer batches share an entry."""
_FIELDS = 9


def steps_of(application: Application, configurations: Configurations) -> tuple[Steps, float]:
    """Return the steps of an application, and the number of samples in them that equal a reference sample.

    If only its speed is known, a step takes a second on its slowest configuration. Its batch is fixed and can be
    spread over all slots.
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
class NewMeasurements:
    """New information of a round: jobs with new measurements, jobs with new gradient noise, and applications
    with new measurements.
    """

    measured: IntArray
    noise_measured: IntArray
    classes: IntArray


class Measurements:
    """Measurements, with one entry for every job, column and batch that ran long enough, in order of time.

    A class keeps only the first entry of its jobs for a column and batch, so its size is independent of the
    number of jobs.
    """

    def __init__(self, world: World, steps: list[Steps], jobs: ReplayJobs) -> None:
        self._jobs, self._configurations = jobs, world.configurations
        self._noise = world.rules.measurement_noise
        self._random = np.random.default_rng([world.seed, 2])
        self._kinds, self._mixed = len(world.kinds), world.configurations.mixed
        phases = max((len(one.step_s) for one in steps), default=1)
        self._batch = _padded([one.global_batch for one in steps], phases)
        self._step_s = _padded([one.step_s for one in steps], phases)
        self._sync_s = _padded([one.sync_s for one in steps], phases)
        self._passes = _padded([one.accumulation for one in steps], phases)
        self._phi = _padded([one.noise_scale for one in steps], phases)
        self.tried = np.zeros((len(world.arrivals), len(world.configurations.slots)), dtype=np.bool_)
        """Mask of columns measured by each job (J, C)."""
        self.tried_by_class = np.zeros((len(steps), len(world.configurations.slots)), dtype=np.bool_)
        """Mask of columns measured by jobs of each application (A, C)."""
        self._own: dict[int, dict[tuple[int, int], tuple[float, ...]]] = {}
        self._shared: dict[int, dict[tuple[int, int], tuple[float, ...]]] = {}
        self._own_phi = np.full(len(world.arrivals), np.nan)
        self._noise_phase = np.full(len(world.arrivals), -1, dtype=np.int64)
        self._class_phi = np.full(len(steps), np.nan)

    def measure(self, rows: IntArray, phase: IntArray) -> NewMeasurements:
        """Record the measurements of `rows` (n,), in these phases (n,) and advanced to now, and return what is new."""
        column, application = self._jobs.column[rows], self._jobs.application[rows]
        at = (application, phase, np.maximum(column, 0))
        step_s = self._step_s[at]
        trained_s = np.where(
            column == NOTHING, 0.0, self._jobs.held_until_s[rows] - self._jobs.trains_from_s[rows]
        )
        shows = np.flatnonzero(np.isfinite(step_s) & (trained_s >= LEAST_STEPS * step_s))
        batch = self._batch[at]
        size = np.rint(_APART * np.log2(np.where(np.isfinite(batch), batch, 1.0))).astype(np.int64)
        noise_measured = self._measure_noise(rows[shows], application[shows], phase[shows])
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
        return NewMeasurements(_sorted(jobs), noise_measured, _sorted(classes))

    def of_jobs(self, rows: IntArray) -> Observations:
        """Return the measurements of each job (n,). An owner is a job on a kind."""
        return self._observations([self._own.get(row, {}) for row in rows.tolist()])

    def of_classes(self) -> Observations:
        """Return the measurements of the applications (A,). An owner is an application on a kind."""
        return self._observations([self._shared.get(index, {}) for index in range(len(self._class_phi))])

    def known(self, rows: IntArray) -> BoolArray:
        """Return whether each job (n,), or a job of its class, was measured at all."""
        classes = self._jobs.application[rows].tolist()
        of_class = np.array([bool(self._shared.get(index)) for index in classes], dtype=np.bool_)
        return np.asarray(self.tried[rows].any(axis=1) | of_class)

    def noise_of(self, rows: IntArray) -> FloatArray:
        """Return the last measured gradient noise scale (n,), of the job itself or else of its class; NaN if
        there is none.
        """
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

    def _measure_noise(self, rows: IntArray, application: IntArray, phase: IntArray) -> IntArray:
        """Return those `rows` (n,) that measured the gradient noise of a new phase, with the same relative
        error as times.
        """
        phi = self._phi[application, phase]
        fresh = np.isfinite(phi) & (self._noise_phase[rows] != phase)
        rows, application = rows[fresh], application[fresh]
        self._noise_phase[rows] = phase[fresh]
        phi = phi[fresh] * np.exp(self._noise * self._random.standard_normal(len(rows)))
        self._own_phi[rows] = self._class_phi[application] = phi
        return rows

    def _observations(self, owners: list[dict[tuple[int, int], tuple[float, ...]]]) -> Observations:
        entries = [
            (index, *one)
            for index, mine in enumerate(owners)
            for (column, _), one in mine.items()
            if not self._mixed[column]  # as in the service, they fit no model of a kind
        ]
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
        """Return the measurements of `rows` (n,) of exactly one configuration each."""
        entries = [
            (index, column, one[8] / one[5], one[8], one[7])
            for index, row in enumerate(rows.tolist())
            for (column, _), one in self._own.get(row, {}).items()
        ]
        entries += [  # as in the service, mixes have no model that the class could teach
            (index, key[0], one[8] / one[5], one[8], one[7])
            for index, row in enumerate(rows.tolist())
            for key, one in self._shared.get(int(self._jobs.application[row]), {}).items()
            if self._mixed[key[0]] and not self.tried[row, key[0]]
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
    """Return the tables as one array (A, E, ...), with the last phase of shorter ones repeated."""
    return np.stack([one[np.minimum(np.arange(phases), len(one) - 1)] for one in tables])
