"""Ended jobs of a replay by class, as policies see them to learn the work of recurring jobs."""

from __future__ import annotations

from collections import deque

import numpy as np

from service.domain.policies.framework.policy import FinishedJobs
from service.domain.policies.framework.work_left import OWN_JOBS
from service.domain.shared.arrays import IntArray
from service.simulation.model.world import World
from service.simulation.replay.jobs import ReplayJobs


class FinishedClasses:
    """The latest ended jobs of each class, of which `job_class` (J,) has the index for every job of the world."""

    def __init__(self, world: World, jobs: ReplayJobs) -> None:
        self._jobs = jobs
        names = [world.applications[one.application].name for one in world.arrivals]
        order = {name: index for index, name in enumerate(dict.fromkeys([*names, *world.ended]))}
        self.job_class = np.array([order[name] for name in names], dtype=np.int64)
        self._latest: dict[int, deque[tuple[float, float, float]]] = {}
        for name, ended in world.ended.items():
            for work, run_s, beyond in ended:
                self._add(order[name], work, run_s, beyond)
        self.finished = self._finished()
        """The ended jobs, for the next round."""

    def end(self, rows: IntArray) -> None:
        """Add the jobs `rows` (n,), which have just ended."""
        jobs = self._jobs
        run_s = (jobs.before_s[rows] + jobs.served_s[rows]).sum(axis=1)
        columns = self.job_class[rows], jobs.work(rows), run_s, jobs.beyond(rows)
        for one in zip(*(column.tolist() for column in columns), strict=True):
            self._add(*one)
        if len(rows):
            self.finished = self._finished()

    def _add(self, job_class: int, work: float, run_s: float, beyond: float) -> None:
        self._latest.setdefault(job_class, deque(maxlen=OWN_JOBS)).append((work, run_s, beyond))

    def _finished(self) -> FinishedJobs:
        ended = [(job_class, *one) for job_class, latest in self._latest.items() for one in latest]
        job_class, work, run_s, beyond = np.array(ended, dtype=np.float64).reshape(len(ended), 4).T
        return FinishedJobs(job_class=job_class.astype(np.int64), work=work, run_s=run_s, beyond=beyond)
