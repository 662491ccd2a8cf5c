"""Small rounds for the tests of policies, and the best choice by trying all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution
from service.domain.policies.framework.policy import Configurations, RoundInput


def columns(slots, *, kind=None, usd_per_h=None) -> Configurations:
    slots = np.asarray(slots, dtype=np.int64)
    kind = np.zeros(len(slots), dtype=np.int64) if kind is None else np.asarray(kind, dtype=np.int64)
    return Configurations(
        kinds=tuple(f"kind{index}" for index in range(kind.max(initial=0) + 1)),
        kind=kind,
        slots=slots,
        nodes=np.ones(len(slots), dtype=np.int64),
        usd_per_h=np.zeros(len(slots)) if usd_per_h is None else np.asarray(usd_per_h, dtype=float),
    )


def a_round(goodput, slots, *, capacity, kind=None, usd_per_h=None, rows=(), **fields: Any) -> RoundInput:
    """A round of jobs that have just been submitted; `capacity` slots of each kind, `rows` beyond those."""
    goodput = np.asarray(goodput, dtype=float)
    configurations = columns(slots, kind=kind, usd_per_h=usd_per_h)
    jobs, kinds = len(goodput), len(configurations.kinds)
    capacity = np.broadcast_to(np.asarray(capacity, dtype=float), kinds)
    of_kinds = tuple(
        Row(
            name=name,
            capacity=float(capacity[index]),
            demand=configurations.slots * (configurations.kind == index * 1.0),
        )
        for index, name in enumerate(configurations.kinds)
    )
    given = {
        "allowed": np.ones(goodput.shape, dtype=np.bool_),
        "current": np.full(jobs, NOTHING),
        "weight": np.ones(jobs),
        "age_s": np.zeros(jobs),
        "waited_s": np.zeros(jobs),
        "served_s": np.zeros((jobs, kinds)),
        "served_slot_s": np.zeros(jobs),
        "changes": np.zeros(jobs, dtype=np.int64),
        "change_s": np.zeros(jobs),
        "remaining": np.full(jobs, np.nan),
        "requested_slots": np.ones(jobs, dtype=np.int64),
        "job_class": np.zeros(jobs, dtype=np.int64),
    }
    given |= {name: np.asarray(value) for name, value in fields.items()}
    return RoundInput(configurations=configurations, rows=of_kinds + tuple(rows), goodput=goodput, **given)


def random_round(seed: int, *, jobs=4, kinds=1, sizes=4, capacity=None, rows=(), **fields: Any) -> RoundInput:
    """Measured-looking rounds: goodput grows with slots, not always evenly; some jobs run, some cannot run everywhere."""
    rng = np.random.default_rng(seed)
    slots = np.tile(np.arange(1, sizes + 1), kinds)
    kind = np.repeat(np.arange(kinds), sizes)
    goodput = rng.uniform(5, 500, (jobs, 1)) * slots ** rng.uniform(0.2, 1.1, (jobs, 1))
    goodput = goodput * rng.uniform(0.7, 1.3, goodput.shape) * (1 + kind)
    goodput[rng.random(goodput.shape) < 0.15] = 0.0
    defaults = {
        "current": np.where(rng.random(jobs) < 0.5, rng.integers(0, len(slots), jobs), NOTHING),
        "weight": rng.choice([0.5, 1.0, 2.0], jobs),
        "change_s": rng.uniform(0, 3, jobs),
        "remaining": np.where(rng.random(jobs) < 0.8, rng.uniform(1e3, 1e6, jobs), np.nan),
        "served_slot_s": rng.uniform(0, 1e4, jobs),
        "stop_s": rng.uniform(0, 30, jobs),
        "usd_per_h": slots * (1.0 + kind),
    }
    capacity = int(rng.integers(1, jobs * sizes)) if capacity is None else capacity
    return a_round(goodput, slots, kind=kind, capacity=capacity, rows=rows, **(defaults | fields))


def every_choice(jobs: int, columns: int) -> np.ndarray:
    """(N, J) all of them, -1 for nothing."""
    return np.indices((columns + 1,) * jobs).reshape(jobs, (columns + 1) ** jobs).T - 1


def is_feasible(rows, choices) -> np.ndarray:
    """(N,) whether choices (N, J) keep to the rows."""
    good = np.ones(len(choices), dtype=np.bool_)
    for row in rows:
        takes = np.append(row.demand, 0.0)[choices]
        takes = takes if row.jobs is None else takes * row.jobs
        good &= takes.sum(axis=1) <= row.capacity + 1e-9
    return good


def value_of(utility, idle, choices) -> np.ndarray:
    """(N,) the sum of utilities of choices (N, J)."""
    table = np.concatenate([utility, np.asarray(idle)[:, None]], axis=1)
    return table[np.arange(len(utility)), choices].sum(axis=1)


def brute_force(problem: Problem) -> Solution:
    """The shared solver for problems of a few jobs: it tries everything."""
    choices = every_choice(*problem.utility.shape)
    utility = np.where(np.isfinite(problem.utility), problem.utility, -np.inf)
    value = np.where(is_feasible(problem.rows, choices), value_of(utility, problem.idle, choices), -np.inf)
    best = int(value.argmax())
    return Solution(
        chosen=choices[best],
        objective=float(value[best]),
        bound=float(value[best]),
        prices=np.zeros(len(problem.rows)),
        status="optimal",
    )
