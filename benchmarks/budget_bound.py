"""The least mean completion time that any policy could reach with so many dollars, however clever: a bound.

Each job is alone in a cluster that always has room, starts when it is submitted, and rents slots instead of nodes. Its
sizes over its phases are those that make hours plus dollars at some price least, with a start at the measured cost and
changes at `change_s` (dynamic programming over phases). By duality (any policy's hours plus price times its dollars are
at least the sum of these) no policy that spends as much is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.domain.shared.arrays import FloatArray
from service.simulation.model.world import Application, Arrival, World

PRICES_H_PER_USD = tuple(np.geomspace(1e-4, 4.0, 60).tolist())


def least_hours(world: World, usd: Sequence[float], *, change_s: float | None) -> list[float]:
    """Mean hours from submit to end, for each of these dollars for all jobs together; `change_s` None: a restart."""
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
    """Hours, and dollars at their price in hours, of the best sizes of a job."""
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
