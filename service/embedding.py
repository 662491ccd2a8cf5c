"""Array interface to the policies and the solver, for other programs.

`docs/embedding.md` explains the arrays and lists the guarantees of compatibility. This module needs no
database, no service and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from service.domain.allocation.knapsack.guaranteed_solve import with_guaranteed_jobs
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution, Solve
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.contention_rules import RUN_COSTS, USUAL
from service.domain.contention.evidence import Evidence
from service.domain.contention.guaranteed_jobs import Tenure
from service.domain.contention.rules import contend
from service.domain.policies.framework.policy import Choices, Configurations, FinishedJobs, RoundInput
from service.domain.policies.framework.speedup import stop_cost_s
from service.domain.policies.registry import POLICIES
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.domain.shared.errors import InvalidField

__all__ = [
    "NOTHING",
    "FinishedArrays",
    "Guarantees",
    "JobArrays",
    "PolicyResult",
    "Problem",
    "Row",
    "Solution",
    "choose",
    "solve",
]

CHANGE_S = 30.0
"""Default cost of a change of slots in seconds of training: a usual restart."""
_WHOLE = 2.0**53
"""Largest magnitude up to which a float represents every whole number."""


class JobArrays(TypedDict, total=False):
    """Optional arrays about the jobs; of shape (J,) unless stated, and each with a default."""

    allowed: ArrayLike
    """Configurations (J, C) that each job may be given now, as booleans. Default: all."""
    current: ArrayLike
    """Column that each job holds, -1 for none. Default: -1."""
    weight: ArrayLike
    """Weight of each job. Default: 1. The policy `idle-fill` treats jobs with a weight below 1 as
    opportunistic.
    """
    age_s: ArrayLike
    """Seconds since the job was submitted. Default: 0."""
    waited_s: ArrayLike
    """Seconds since the job last held slots or was submitted; 0 while it holds some. Default: its age if it
    holds none.
    """
    served_s: ArrayLike
    """Seconds (J, K) that the job has held slots of each kind. Default: 0."""
    served_slot_s: ArrayLike
    """Slot-seconds that the job has held. Default: 0."""
    changes: ArrayLike
    """Number of changes of the job's slots. Default: 0."""
    change_s: ArrayLike
    """Seconds of training that a change of the job's slots costs. Default: 30."""
    stop_s: ArrayLike
    """Seconds of training that the loss of all slots costs, until the next start. Default: `change_s`."""
    remaining: ArrayLike
    """Reference samples left, NaN if unknown. Default: NaN."""
    requested_slots: ArrayLike
    """Size that a rigid scheduler would give the job. Default: 1."""
    job_class: ArrayLike
    """Index of the job's class: jobs of one class have the same speedups and sizes. Default: 0."""
    length_class: ArrayLike
    """Index of the job's class among the ended jobs. Default: `job_class`."""
    thrift: ArrayLike
    """Factor (J, C) from 0 to 1 on the worth of a configuration, for the price of its market. Default: 1."""
    share: ArrayLike
    """Factor on the weight for the past usage of the job's project. Default: 1."""
    seats: ArrayLike
    """Configuration of each job that must have slots, -1 for the others; together they must fit. Default: -1."""
    firm: ArrayLike
    """Running jobs that keep slots whatever others would gain, as booleans. Default: none."""
    next_turn: ArrayLike
    """Positive for waiting jobs that come before others with seats, the greatest first. Default: 0."""
    done: ArrayLike
    """Reference samples that the job has done, NaN if unknown. Default: NaN."""
    converged: ArrayLike
    """Reference samples from the start at which the job's loss curve converges, NaN if unknown. Default: NaN."""


class FinishedArrays(TypedDict, total=False):
    """Jobs that ended by themselves (E,), oldest first, from which the work of jobs of unknown length is learned."""

    job_class: Required[ArrayLike]
    """Class of each ended job, numbered as `length_class` of the present jobs."""
    work: ArrayLike
    """Reference samples of the whole job, 0 where unknown. Default: 0."""
    run_s: ArrayLike
    """Seconds that the job held slots, 0 where unknown. Default: 0."""
    beyond: ArrayLike
    """Work of the whole job over that at which its loss curve converged, NaN where unknown. Default: NaN."""


class Guarantees(TypedDict, total=False):
    """Rules for jobs that compete (`docs/allocation.md`); arrays of shape (J,), and each with a default."""

    run_s: ArrayLike
    """Seconds since the job last began to hold slots; 0 for a waiting one. Default: its age if it holds slots."""
    min_run_s: ArrayLike
    """Seconds for which a started job runs before another job's gain may stop it. Default: 60, or twenty times
    `stop_s` if that is more.
    """
    max_wait_s: float
    """Seconds after which a waiting job gets its turn. Default: 1800."""
    priority: ArrayLike
    """Priority of each job: a higher one may stop a lower one at any time. Default: 0."""
    recent_s: ArrayLike
    """Seconds of training that changes of the last ten minutes cost the job. Default: 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """The result of a policy.

    `choices` (J,) is the column that each job gets, -1 for none. `objective` is their total worth in the unit
    that `unit` names; `bound` is an upper bound on the worth of any choice. `prices` (K + rows,) are the
    worth of one more slot of each kind, then of one more unit of each further row. `utility` (J, C) and
    `idle` (J,) are the worth of each column and of having nothing. `status` is `optimal`, `within_gap`, or
    `limit` if the effort was spent first.
    """

    choices: IntArray
    objective: float
    bound: float
    prices: FloatArray
    utility: FloatArray
    idle: FloatArray
    unit: str
    status: str


def choose(
    policy: str,
    *,
    goodput: ArrayLike,
    slots: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    nodes: ArrayLike | None = None,
    usd_per_h: ArrayLike | None = None,
    rows: Sequence[Row] = (),
    parameters: Mapping[str, Any] | None = None,
    gap: float = 1e-3,
    finished: FinishedArrays | None = None,
    guarantees: Guarantees | None = None,
    **jobs: Unpack[JobArrays],
) -> PolicyResult:
    """Return the share of each of J jobs in C configurations (columns) on K device kinds, by the named policy.

    `goodput` (J, C) is in reference samples per second, 0 for a configuration that cannot run the job. Jobs
    are in the order of their submission. `slots`, `kind` (an index), `nodes` and `usd_per_h` (C,) describe
    the configurations. `capacity` (K,) is the number of slots of each kind. `rows` are further limits.
    `gap` is the accepted relative distance to the bound. `finished` are ended jobs. With `guarantees`, minimums of
    all jobs precede surplus, and runs and waits are bounded. `jobs` are the arrays of `JobArrays`.

    Raises `ValueError` with a remedy for inconsistent arrays, impossible values and unknown names.
    """
    table = _numbers("goodput", goodput, None)
    limits = _numbers("capacity", capacity, None)
    if table.ndim != 2 or limits.ndim != 1:
        raise ValueError(
            "give goodput as a table (jobs, configurations), and capacity as the slots of each kind"
        )
    columns = table.shape[1]
    configurations = Configurations(
        kinds=tuple(f"kind {index}" for index in range(len(limits))),
        kind=_whole("kind", kind, columns, at_most=len(limits) - 1),
        slots=_whole("slots", slots, columns, at_least=1),
        nodes=_whole("nodes", 1 if nodes is None else nodes, columns, at_least=1),
        usd_per_h=_numbers("usd_per_h", 0.0 if usd_per_h is None else usd_per_h, (columns,)),
    )
    given = RoundInput(
        configurations=configurations,
        rows=(*_slot_rows(configurations, limits), *(_checked(row, table.shape) for row in rows)),
        goodput=table,
        finished=None if finished is None else _finished_jobs(finished),
        **_job_arrays(jobs, table.shape, len(limits)),
    )
    try:
        rule = POLICIES.policy(policy, parameters)
    except InvalidField as wrong:
        raise ValueError(wrong.message) from wrong
    bounded: Solve = partial(solve, gap=gap)
    if guarantees is not None:
        given = _guaranteed(given, guarantees, bounded)
    return _result(
        rule.choose(given, bounded if given.seats is None else with_guaranteed_jobs(bounded, given.seats))
    )


def _result(made: Choices) -> PolicyResult:
    return PolicyResult(
        choices=made.chosen,
        objective=made.solution.objective,
        bound=made.solution.bound,
        prices=made.solution.prices,
        utility=made.utility,
        idle=made.idle,
        unit=made.unit,
        status=made.solution.status,
    )


def _job_arrays(given: JobArrays, shape: tuple[int, ...], kinds: int) -> dict[str, Any]:
    """Return the arguments of `RoundInput`, with defaults for missing arrays."""
    _known_names("job array", given, JobArrays)
    jobs, columns = shape
    current = _whole("current", given.get("current", NOTHING), jobs, at_least=NOTHING, at_most=columns - 1)
    age_s = _numbers("age_s", given.get("age_s", 0.0), (jobs,))
    waited_s = np.where(current == NOTHING, age_s, 0.0)
    return {
        "allowed": _flags("allowed", given.get("allowed", True), shape),
        "current": current,
        "weight": _numbers("weight", given.get("weight", 1.0), (jobs,)),
        "age_s": age_s,
        "waited_s": _numbers("waited_s", given.get("waited_s", waited_s), (jobs,)),
        "served_s": _numbers("served_s", given.get("served_s", 0.0), (jobs, kinds)),
        "served_slot_s": _numbers("served_slot_s", given.get("served_slot_s", 0.0), (jobs,)),
        "changes": _whole("changes", given.get("changes", 0), jobs),
        "change_s": _numbers("change_s", given.get("change_s", CHANGE_S), (jobs,)),
        "stop_s": _numbers("stop_s", given.get("stop_s", given.get("change_s", CHANGE_S)), (jobs,)),
        "remaining": _numbers("remaining", given.get("remaining", np.nan), (jobs,), or_nan=True),
        "requested_slots": _whole("requested_slots", given.get("requested_slots", 1), jobs, at_least=1),
        "job_class": _whole("job_class", given.get("job_class", 0), jobs),
        "length_class": None
        if "length_class" not in given
        else _whole("length_class", given["length_class"], jobs),
        "thrift": None if "thrift" not in given else _numbers("thrift", given["thrift"], shape),
        "share": None if "share" not in given else _numbers("share", given["share"], shape[:1]),
        "seats": None
        if "seats" not in given
        else _whole("seats", given["seats"], jobs, at_least=NOTHING, at_most=columns - 1),
        "firm": None if "firm" not in given else _flags("firm", given["firm"], shape[:1]),
        "next_turn": None if "next_turn" not in given else _whole("next_turn", given["next_turn"], jobs),
        "done": None if "done" not in given else _numbers("done", given["done"], shape[:1], or_nan=True),
        "converged": _numbers("converged", given.get("converged", np.nan), (jobs,), or_nan=True),
    }


def _finished_jobs(given: FinishedArrays) -> FinishedJobs:
    _known_names("array of ended jobs", given, FinishedArrays)
    shape = np.shape(given["job_class"])
    if len(shape) != 1:
        raise ValueError(f"job_class of ended jobs has the shape {shape}; give one class for each of them")
    return FinishedJobs(
        job_class=_whole("job_class of ended jobs", given["job_class"], shape[0]),
        work=_numbers("work of ended jobs", given.get("work", 0.0), shape),
        run_s=_numbers("run_s of ended jobs", given.get("run_s", 0.0), shape),
        beyond=_numbers("beyond of ended jobs", given.get("beyond", np.nan), shape, or_nan=True),
    )


def _guaranteed(given: RoundInput, rules: Guarantees, solve: Solve) -> RoundInput:
    """Return the input with the seats and limits that follow from the rules for jobs that compete."""
    _known_names("guarantee", rules, Guarantees)
    if given.seats is not None or given.firm is not None:
        raise ValueError("give either guarantees, from which seats and firm follow, or seats and firm")
    shape, holds = given.current.shape, given.current != NOTHING
    least_s = np.maximum(USUAL.min_run_s, RUN_COSTS * stop_cost_s(given))
    tenure = Tenure(
        run_s=np.where(holds, _numbers("run_s", rules.get("run_s", given.age_s), shape), 0.0),
        min_run_s=_numbers("min_run_s", rules.get("min_run_s", least_s), shape),
        pinned=np.zeros(shape, dtype=np.bool_),
        rigid=np.zeros(shape, dtype=np.bool_),
        forced=holds & ~given.allowed[np.arange(shape[0]), np.maximum(given.current, 0)]
        if given.allowed.size
        else holds,
        priority=_numbers("priority", rules.get("priority", 0.0), shape, at_least=-np.inf),
        recent_s=_numbers("recent_s", rules.get("recent_s", 0.0), shape),
        coming=np.zeros(len(given.configurations.kinds)),
        max_wait_s=float(_numbers("max_wait_s", rules.get("max_wait_s", USUAL.max_wait_s), ())),
    )
    everyone = np.ones(shape, dtype=np.bool_)
    evidence = Evidence(
        known=np.ones_like(given.allowed),
        exempt=everyone,
        entitled=~everyone,
        nodes=np.zeros(len(given.configurations.kinds), dtype=np.int64),
    )
    return contend(given, tenure, evidence, solve).given


def _known_names(what: str, given: Mapping[str, Any], kind: type) -> None:
    """Raise ValueError for a name that the kind of mapping does not have."""
    unknown = given.keys() - kind.__annotations__.keys()
    if unknown:
        raise ValueError(f"there is no {what} {min(unknown)!r}; use one of {', '.join(kind.__annotations__)}")


def _slot_rows(configurations: Configurations, capacity: FloatArray) -> list[Row]:
    kinds = zip(configurations.kinds, capacity.tolist(), strict=True)
    return [
        Row(
            name=name,
            capacity=slots,
            demand=configurations.slots * (configurations.kind == index).astype(float),
        )
        for index, (name, slots) in enumerate(kinds)
    ]


def _checked(row: Row, shape: tuple[int, ...]) -> Row:
    jobs, columns = shape
    return Row(
        name=row.name,
        capacity=float(_numbers(f"capacity of row {row.name!r}", row.capacity, ())),
        demand=_numbers(f"demand of row {row.name!r}", row.demand, (columns,)),
        jobs=None if row.jobs is None else _flags(f"jobs of row {row.name!r}", row.jobs, (jobs,)),
    )


def _numbers(
    name: str,
    value: ArrayLike,
    shape: tuple[int, ...] | None,
    *,
    at_least: float = 0.0,
    at_most: float = np.inf,
    or_nan: bool = False,
) -> FloatArray:
    """Return a copy of the value as finite numbers in this shape (None: in its own). A scalar is broadcast."""
    try:
        given = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"{name} is not an array of numbers: {wrong}") from wrong
    numbers: FloatArray = _shaped(name, given, shape)
    good = np.isfinite(numbers) & (numbers >= at_least) & (numbers <= at_most)
    wrong_at = np.argwhere(~(good | np.isnan(numbers)) if or_nan else ~good)
    if len(wrong_at):
        where = tuple(wrong_at[0].tolist())
        limits = f"from {at_least:g} to {at_most:g}" if np.isfinite(at_most) else f"of at least {at_least:g}"
        unknown = ", or NaN where unknown" if or_nan else ""
        raise ValueError(f"{name}{list(where)} is {numbers[where]:g}; give finite numbers {limits}{unknown}")
    return numbers


def _whole(
    name: str, value: ArrayLike, length: int, *, at_least: int = 0, at_most: float = np.inf
) -> IntArray:
    numbers = _numbers(name, value, (length,), at_least=at_least, at_most=at_most)
    broken = (numbers != np.rint(numbers)) | (numbers > _WHOLE)
    if broken.any():
        raise ValueError(f"{name} has {numbers[broken][0]:g} in it; give whole numbers")
    return numbers.astype(np.int64)


def _flags(name: str, value: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    flags = np.array(value)
    if flags.dtype != np.bool_:
        raise ValueError(f"{name} is of type {flags.dtype}; give booleans")
    return np.asarray(_shaped(name, flags, shape))


def _shaped(name: str, array: Any, shape: tuple[int, ...] | None) -> Any:
    if shape is not None and array.ndim == 0:
        return np.array(np.broadcast_to(array, shape))
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; give it {shape}")
    return array
