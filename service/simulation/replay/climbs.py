"""Climbs of jobs to the best batch of a column, as in the service.

A start and a change bring the best batch of the column, at most `EXPLORE_FACTOR` times the largest that the job, or
for its start its application, has tried. From there the job tries each larger batch for `ENOUGH_STEPS` steps. Until
it arrives, it is slower than in the tables. Therefore its clock, seconds of training at the best batch, falls behind.
"""

from __future__ import annotations

import numpy as np

from service.domain.perf.batch import ENOUGH_STEPS, EXPLORE_FACTOR
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.world import World


class Climbs:
    """Climbs of the jobs (J,) of a world over the B stages of their applications. `rows` are indices into them."""

    def __init__(self, world: World, application: IntArray) -> None:
        stages = [None if one.steps is None else one.steps.stages for one in world.applications]
        phases = max((one.step_s.shape[0] for one in stages if one is not None), default=1)
        most = max((len(one.batch) for one in stages if one is not None), default=1)
        shape = (len(stages), phases, most, len(world.configurations.slots))
        self._flat = all(one is None for one in stages)
        self._application = application
        self._batch, self._best = np.full((len(stages), most), np.inf), np.zeros((*shape[:2], shape[3]))
        self._stage_s, self._rate = np.zeros(shape), np.ones(shape)
        """Seconds of each stage, and its speed relative to the best batch (A, E, B, C)."""
        for index, one in enumerate(stages):
            if one is None:
                continue
            number, at = len(one.batch), np.minimum(np.arange(phases), len(one.step_s) - 1)
            peak = one.goodput.max(axis=1, keepdims=True)
            climbs = (peak > 0) & (np.arange(number)[:, None] < one.goodput.argmax(axis=1)[:, None, :])
            climbs &= one.goodput > 0
            self._batch[index, :number] = one.batch
            self._best[index] = one.batch[one.goodput.argmax(axis=1)][at]
            self._stage_s[index, :, :number] = np.where(climbs, ENOUGH_STEPS * one.step_s, 0.0)[at]
            self._rate[index, :, :number] = np.where(
                climbs, one.goodput / np.where(peak > 0, peak, 1.0), 1.0
            )[at]
        jobs = len(application)
        self._tried, self._tried_by_class = np.zeros(jobs), np.zeros(len(stages))
        """Largest batch that each job and each application has tried, in samples; 0: none."""
        self._target = np.zeros(jobs)
        """Best batch of each job's column."""
        self._ends_s, self._clock_s = np.zeros((jobs, most + 1)), np.zeros((jobs, most + 1))
        """Seconds of training until the end of each stage, and the job's clock there; both begin at 0."""

    def begin(self, rows: IntArray, phase: IntArray, columns: IntArray, starts: BoolArray) -> None:
        """Begin the climb of `rows` (n,), which are in these phases (n,), on new columns (n,).

        `starts` (n,) marks jobs that held no slots before.
        """
        if self._flat:
            return
        application = self._application[rows]
        tried = np.where(
            starts, np.maximum(self._tried[rows], self._tried_by_class[application]), self._tried[rows]
        )
        stage_s = self._stage_s[application, phase, :, columns]
        # The stages below the batch that comes with the change are skipped.
        stage_s = np.where(self._batch[application] < EXPLORE_FACTOR * tried[:, None], 0.0, stage_s)
        rate = self._rate[application, phase, :, columns]
        self._ends_s[rows, 1:] = np.cumsum(stage_s, axis=1)
        self._clock_s[rows, 1:] = np.cumsum(stage_s * rate, axis=1)
        self._target[rows] = self._best[application, phase, columns]

    def note(self, rows: IntArray, trained_s: FloatArray) -> None:
        """Note the batch that `rows` (n,) have after these seconds (n,) of training on their columns."""
        if self._flat:
            return
        application = self._application[rows]
        climbing = self._ends_s[rows, 1:] > trained_s[:, None]
        present = np.where(climbing, self._batch[application], np.inf).min(axis=1)
        present = np.where(trained_s > 0, np.minimum(present, self._target[rows]), 0.0)
        self._tried[rows] = np.maximum(self._tried[rows], present)
        np.maximum.at(self._tried_by_class, application, self._tried[rows])

    def clock_after(self, rows: IntArray, trained_s: FloatArray) -> FloatArray:
        """Return by how much the clock of each job (n,) has advanced after these seconds (n,) of training."""
        return trained_s if self._flat else _through(trained_s, self._ends_s[rows], self._clock_s[rows])

    def trained_after(self, rows: IntArray, clock_s: FloatArray) -> FloatArray:
        """Return the seconds of training (n,) after which the clock of each job has advanced by `clock_s` (n,)."""
        return clock_s if self._flat else _through(clock_s, self._clock_s[rows], self._ends_s[rows])


def _through(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the value of each row's piecewise linear function through x and y (n, P), which goes on with slope 1."""
    rows = np.arange(len(at))
    index = np.clip((x <= at[:, None]).sum(axis=1) - 1, 0, x.shape[1] - 1)
    following = np.minimum(index + 1, x.shape[1] - 1)
    low, width = x[rows, index], x[rows, following] - x[rows, index]
    slope = np.where(width > 0, (y[rows, following] - y[rows, index]) / np.where(width > 0, width, 1.0), 1.0)
    return np.asarray(y[rows, index] + slope * (at - low))
