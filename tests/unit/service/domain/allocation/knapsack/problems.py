"""Problems for the solver's tests, and every possible choice of small ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from service.domain.allocation.knapsack.core import Core, build
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row
from service.domain.shared.arrays import FloatArray, IntArray

ODD = [np.nan, np.inf, -np.inf, -1.0]


def problem(
    utility: object,
    rows: tuple[Row, ...] = (),
    *,
    idle: object = None,
    current: object = None,
) -> Problem:
    values = np.array(utility, float)
    jobs = len(values)
    return Problem(
        utility=values.reshape(jobs, -1)
        if jobs
        else values.reshape(0, values.shape[-1] if values.ndim > 1 else 0),
        idle=np.zeros(jobs) if idle is None else np.array(idle, float),
        rows=rows,
        current=np.full(jobs, NOTHING) if current is None else np.array(current),
    )


@st.composite
def small(draw: st.DrawFn, *, odd: bool = False) -> Problem:
    """Up to five jobs with up to four columns; small integers make ties likely. `odd` adds values such as NaN."""
    jobs, columns = draw(st.integers(0, 5)), draw(st.integers(0, 4))

    def numbers(count: int, low: float, high: float) -> list[float]:
        usual = st.one_of(
            st.integers(int(low), int(high)).map(float), st.floats(low, high).map(lambda one: round(one, 6))
        )
        return draw(
            st.lists(st.one_of(usual, st.sampled_from(ODD)) if odd else usual, min_size=count, max_size=count)
        )

    rows = tuple(
        Row(
            name=str(index),
            capacity=numbers(1, 0, 8)[0],
            demand=np.array(numbers(columns, 0, 4)),
            jobs=draw(st.none() | st.lists(st.booleans(), min_size=jobs, max_size=jobs).map(np.array)),
        )
        for index in range(draw(st.integers(0, 4)))
    )
    return Problem(
        utility=np.array(numbers(jobs * columns, -2, 5)).reshape(jobs, columns),
        idle=np.array(numbers(jobs, -2, 2)),
        rows=rows,
        current=np.array(draw(st.lists(st.integers(-2, columns), min_size=jobs, max_size=jobs)), np.int64),
    )


@st.composite
def gainful(draw: st.DrawFn) -> Problem:
    """Up to four jobs, three columns and three rows; the first job can always have the first column."""
    jobs, columns = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    gain = st.one_of(st.integers(1, 6).map(float), st.floats(0.5, 6.0).map(lambda one: round(one, 3)))
    utility = draw(st.lists(gain, min_size=jobs * columns, max_size=jobs * columns))
    rows = tuple(
        Row(
            name=str(index),
            capacity=float(draw(st.integers(1, 6))),
            demand=np.array(
                [1.0, *draw(st.lists(st.integers(0, 3), min_size=columns - 1, max_size=columns - 1))]
            ),
            jobs=draw(st.none() | st.lists(st.booleans(), min_size=jobs, max_size=jobs).map(np.array)),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    return problem(np.array(utility).reshape(jobs, columns), rows)


def core_of(given: Problem, cells: int | None = None) -> Core:
    """The internal form of a problem, with a cell for every job unless a number of cells is given."""
    return build(given, cells=len(given.idle) if cells is None else cells)


def choices_of(core: Core) -> Iterator[IntArray]:
    """Every choice of the jobs of a core that each job may have on its own."""
    options = [[NOTHING, *np.flatnonzero(gains > 0.0).tolist()] for gains in core.gain]
    return (np.array(choice, np.int64) for choice in itertools.product(*options))


def best_gain(core: Core) -> float:
    """The most that any choice within the rows gains, by trying them all."""
    return max(core.value(choice) for choice in choices_of(core) if core.fits(choice))


def random_problem(seed: int, *, jobs: int, columns: int, common: int, quotas: int, load: float) -> Problem:
    """Jobs that gain by size less and less, a row for each kind, and quotas on what jobs of a project take."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, max(common, 1), columns)
    size = rng.integers(1, 9, columns).astype(float)
    utility = rng.uniform(0.5, 2.0, (jobs, 1)) * size ** rng.uniform(0.3, 0.9, (jobs, 1))
    utility *= rng.uniform(0.8, 1.2, (jobs, columns))
    project = rng.integers(0, max(quotas, 1), jobs)
    rows = [
        Row(name=f"kind{k}", capacity=round(load * jobs), demand=np.where(kind == k, size, 0.0))
        for k in range(common)
    ]
    rows += [
        Row(name=f"quota{q}", capacity=round(2 * load * jobs / quotas), demand=size, jobs=project == q)
        for q in range(quotas)
    ]
    return problem(utility, tuple(rows), idle=rng.uniform(-1, 0, jobs))


def idle_of(given: Problem) -> FloatArray:
    """The worth of having nothing, which counts as 0 if it is not a number."""
    return np.where(np.isfinite(given.idle), given.idle, 0.0)


def allowed(given: Problem) -> list[list[int]]:
    """The options of each job: `NOTHING`, and the columns whose utility is a number."""
    return [[NOTHING, *np.flatnonzero(np.isfinite(row)).tolist()] for row in given.utility]


def keeps(given: Problem, chosen: IntArray) -> bool:
    """Return True if a choice keeps every row. Demands that are not finite never fit."""
    for row in given.rows:
        capacity = max(0.0, row.capacity)
        counted = [
            float(row.demand[column])
            for job, column in enumerate(chosen.tolist())
            if column != NOTHING and (row.jobs is None or row.jobs[job])
        ]
        if not np.isfinite(counted).all() or sum(max(one, 0.0) for one in counted) > capacity * (1.0 + 1e-9):
            return False
    return True


def worth(given: Problem, chosen: IntArray) -> float:
    """The sum of utilities."""
    idle = idle_of(given)
    return float(
        sum(
            idle[job] if column == NOTHING else given.utility[job, column]
            for job, column in enumerate(chosen.tolist())
        )
    )


def best_of_all(given: Problem) -> float:
    """The highest worth of any choice, by trying them all."""
    return max(
        worth(given, chosen)
        for chosen in map(np.array, itertools.product(*allowed(given)))
        if keeps(given, chosen)
    )
