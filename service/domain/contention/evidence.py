"""Evidence before preemption: unmeasured sizes are tried on free slots only, by one job per node at a time.

A configuration is *unmeasured* for a job if neither the job nor another job of its class has run on that many
slots of the kind. Trying one costs other jobs nothing: the slots that all explorations add together fit into
the slots that remain free once every waiting job has its minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.guaranteed_jobs import GuaranteedJobs, Tenure
from service.domain.contention.priorities import by_turn
from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.speedup import goodput_now, kind_capacity
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence about the jobs (J,) and the cluster of a round.

    Attributes:
        known: (J, C) configurations whose size the job or its class has run on.
        exempt: (J,) jobs whose size needs no evidence: fixed by a user, or never measured at all. While the minimums do not
            fit, their surplus still stops no running job, whether they start or grow.
        entitled: (J,) jobs of projects that claim guaranteed slots. They need no evidence for a size.
        nodes: (K,) nodes of each kind that have slots.
        restarted: (J,) jobs that restart to change their size; None if there are none.
    """

    known: BoolArray
    exempt: BoolArray
    entitled: BoolArray
    nodes: IntArray
    restarted: BoolArray | None = None


def unproven(given: RoundInput, evidence: Evidence, tenure: Tenure, seats: GuaranteedJobs) -> BoolArray:
    """Return the configurations (J, C) that must wait for free slots or for the end of another job's
    exploration.

    A job may always keep its slots, shrink, or take its smallest configuration. A job of an unknown class may
    take its smallest configuration from other jobs' surplus, but not from their minimums unless it is the
    job's turn.
    """
    configurations = given.configurations
    slots, kind = configurations.slots, configurations.kind
    held = np.where(given.current >= 0, slots[np.maximum(given.current, 0)], 0)
    held_kind = np.where(given.current >= 0, kind[np.maximum(given.current, 0)], -1)
    grows = (slots[None, :] > held[:, None]) | (kind[None, :] != held_kind[:, None])
    least = np.where(seats.smallest != NOTHING, slots[np.maximum(seats.smallest, 0)], 0)
    tries = given.allowed & grows & ~evidence.known & (slots[None, :] > least[:, None])
    tries[evidence.exempt | evidence.entitled] = False
    waits = tries.copy()
    demand, free = _demand(given), _free(given, seats)
    more = _more(given, seats, demand)
    fits_free = (more <= free[:, None, None]).all(axis=0)
    fits = tries & fits_free
    exploring = _exploring(given, evidence, held, least)
    for index in range(len(configurations.kinds)):
        of_kind = kind == index
        number = int(evidence.nodes[index]) - int((exploring & (held_kind == index)).sum())
        explorers = _explorers(given, fits & of_kind, more[index], free[index], number)
        waits[np.ix_(explorers, of_kind)] &= ~fits[np.ix_(explorers, of_kind)]
    if not seats.fit:
        waits |= _displacing(given, evidence, tenure, seats, demand)
        # While a minimum waits, no job grows at the expense of others or into free slots that the minimum
        # could use. No job restarts to grow: it would shrink again once another job ends, and the minimum fits.
        running = (given.current != NOTHING) & ~evidence.exempt & ~evidence.entitled
        startable = (given.current == NOTHING)[:, None] & given.allowed & (given.goodput > 0) & ~waits
        someone_could_start = startable[:, (demand <= free[:, None]).all(axis=0)].any()
        barred = (running[:, None] & (someone_could_start | ~fits_free)) | _restarting(evidence, running)[
            :, None
        ]
        waits |= given.allowed & grows & barred
        waits |= _crowding(given, evidence, tenure, seats, demand)
    return np.asarray(waits)


def _restarting(evidence: Evidence, running: BoolArray) -> BoolArray:
    """Return those of the running jobs (J,) that restart to change their size."""
    return running & False if evidence.restarted is None else running & evidence.restarted


def _demand(given: RoundInput) -> FloatArray:
    """Return the slots (K, C) of each kind that a configuration takes."""
    kinds = len(given.configurations.kinds)
    return np.array([row.demand for row in given.rows[:kinds]], dtype=np.float64)


def _free(given: RoundInput, seats: GuaranteedJobs) -> FloatArray:
    """Return the free slots (K,) of each kind once every waiting job with a seat, or with a claim to slots that others
    are leaving, has its minimum.
    """
    free = kind_capacity(given)
    holds = given.current != NOTHING
    for index, row in enumerate(given.rows[: len(free)]):
        free[index] -= float(row.demand[given.current[holds]].sum())
        waiting = np.concatenate([one[~holds & (one != NOTHING)] for one in (seats.columns, seats.coming)])
        free[index] -= float(row.demand[waiting].sum())
    return np.maximum(free, 0.0)


def _more(given: RoundInput, seats: GuaranteedJobs, demand: FloatArray) -> FloatArray:
    """Return the slots (K, J, C) of each kind that a configuration takes beyond those that `_free` attributes
    to the job.
    """
    columns = np.where(given.current != NOTHING, given.current, seats.columns)
    counted = np.where(columns != NOTHING, demand[:, np.maximum(columns, 0)], 0.0)
    return np.asarray(demand[:, None, :] - counted[:, :, None])


def _exploring(given: RoundInput, evidence: Evidence, held: IntArray, least: IntArray) -> BoolArray:
    """Return the jobs (J,) that run on more than their minimum at a size without measurements."""
    rows = np.arange(len(held))
    known = evidence.known[rows, np.maximum(given.current, 0)]
    return np.asarray((given.current >= 0) & (held > least) & ~known & ~evidence.exempt)


def _explorers(given: RoundInput, fits: BoolArray, more: FloatArray, free: float, number: int) -> IntArray:
    """Return the jobs that may explore a kind now, by weight and expected gain, as far as the free slots
    suffice.
    """
    gain = np.where(fits, given.goodput, 0.0).max(axis=1, initial=0.0)
    now = goodput_now(given)
    relative = given.weight * np.where(now > 0, gain / np.maximum(now, 1e-12), 1.0)
    candidates = np.flatnonzero(fits.any(axis=1))
    order = candidates[np.argsort(-relative[candidates], kind="stable")][: max(number, 0)]
    needs = np.where(fits, more, 0.0).max(axis=1, initial=0.0)[order]
    return np.asarray(order[np.cumsum(needs) <= free])


def _crowding(
    given: RoundInput, evidence: Evidence, tenure: Tenure, seats: GuaranteedJobs, demand: FloatArray
) -> BoolArray:
    """Return the configurations (J, C) to which jobs with seats start or grow although that would stop a running job.

    A running job counts if its minimum fits beside all seats, in the order of turns.
    """
    holds, seated = given.current != NOTHING, seats.columns != NOTHING
    room = kind_capacity(given) - demand[:, seats.columns[seated]].sum(axis=1)
    stays = holds & ~seated & ~tenure.forced & ~seats.barred & (seats.smallest != NOTHING)
    for job in by_turn(stays, tenure.priority, given.waited_s):
        least = demand[:, seats.smallest[job]]
        if (least <= room).all():
            room -= least
    slots = given.configurations.slots
    held = np.where(holds, slots[np.maximum(given.current, 0)], 0)
    grown = slots[None, :] > np.maximum(held, slots[np.maximum(seats.columns, 0)])[:, None]
    claims = seated & ~evidence.entitled
    more = demand[:, None, :] - demand[:, np.maximum(seats.columns, 0)][:, :, None]
    crowds = (more > np.maximum(room, 0.0)[:, None, None]).any(axis=0)
    return np.asarray(claims[:, None] & grown & crowds & given.allowed)


def _displacing(
    given: RoundInput, evidence: Evidence, tenure: Tenure, seats: GuaranteedJobs, demand: FloatArray
) -> BoolArray:
    """Return the configurations (J, C) of waiting jobs of an unknown class that do not fit beside the running
    minimums.
    """
    holds = given.current != NOTHING
    newcomers = ~holds & ~evidence.known.any(axis=1) & (seats.columns == NOTHING)
    newcomers &= ~evidence.exempt & ~evidence.entitled
    # A job of a higher priority than some running job needs no evidence.
    newcomers &= tenure.priority <= tenure.priority[holds].min(initial=np.inf)
    if not newcomers.any():
        return np.zeros_like(given.allowed)
    kept = np.where(holds, seats.smallest, seats.columns)
    room = kind_capacity(given) - demand[:, kept[kept != NOTHING]].sum(axis=1)
    too_much = (demand > np.maximum(room, 0.0)[:, None]).any(axis=0)
    return np.asarray(newcomers[:, None] & too_much[None, :] & given.allowed)
