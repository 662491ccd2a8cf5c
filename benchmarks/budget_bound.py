"""Lower bound on the mean completion time of any policy that spends a given number of dollars.

Each job runs alone in a cluster without limits, starts at its submit, and rents slots instead of nodes. For a given price,
dynamic programming over the phases of a job finds the sizes with the least hours + price * dollars. A start costs the
measured time, and a change `change_s`. For any policy, hours + price * dollars of all jobs are at least the sum of these
minimums. So by duality no policy that spends as much is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.domain.shared.arrays import FloatArray
from service.simulation.model.world import Application, Arrival, World

PRICES_H_PER_USD = tuple(np.geomspace(1e-4, 4.0, 60).tolist())


def least_hours(world: World, usd: Sequence[float], *, change_s: float | None) -> list[float]:
    """Return the bound on the mean hours from submit to end, for each total of dollars in `usd`.

    `change_s` are the seconds of a change; None means those of a restart.
    """
    jobs = len(world.arrivals)
    bounds = []
    for price in PRICES_H_PER_USD:
        alone: dict[tuple[int, float | None], float] = {}
        total = 0.0
        for job in world.arrivals:
            kind = job.application, job.work
            if kind not in alone:
                application = world.applications[job.application]
                alone[kind] = _least(application, job, world.configurations.usd_per_h, price, change_s)
            total += alone[kind]
        bounds.append([(total - price * spent) / jobs for spent in usd])
    least: list[float] = np.array(bounds).max(axis=0).tolist()
    return least


def _least(
    application: Application, job: Arrival, usd_per_h: FloatArray, price: float, change_s: float | None
) -> float:
    """Return the minimum of hours + price * dollars over the sizes of a job. `price` is in hours per dollar."""
    hour_cost = 1.0 + price * usd_per_h
    work = np.diff(application.boundaries)
    if job.work is not None:
        work = work * (job.work / application.boundaries[-1])
    start_h = application.restart_s / 3600
    change_h = start_h if change_s is None else change_s / 3600
    cost = start_h * hour_cost
    for phase, samples in enumerate(work.tolist()):
        goodput = application.goodput[phase]
        if phase:
            cost = np.minimum(cost, cost.min() + change_h * hour_cost)
        cost = cost + np.where(
            goodput > 0, samples / np.where(goodput > 0, goodput, 1.0) / 3600 * hour_cost, np.inf
        )
    return float(cost.min())
