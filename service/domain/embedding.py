"""The front door for other programs: policies and solver, called with arrays alone.

`docs/embedding.md` explains the arrays and promises what stays as it is. Nothing here needs a database, a service or
a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from service.domain.allocation.knapsack.problem import NOTHING, Problem, Row, Solution
from service.domain.allocation.knapsack.solver import solve
from service.domain.arrays import BoolArray, FloatArray, IntArray
from service.domain.errors import InvalidField
from service.domain.policies import registry
from service.domain.policies.policy import Configurations, RoundInput

__all__ = ["NOTHING", "JobArrays", "Problem", "Result", "Row", "Solution", "choose", "solve"]

CHANGE_S = 30.0
"""Seconds of training that a change of slots costs where the caller does not say: a usual restart."""
_WHOLE = 2.0**53
"""Beyond it floats are no longer every whole number."""


class JobArrays(TypedDict, total=False):
    """What a caller may say of its jobs; (J,) each unless said, and each with a default."""

    allowed: ArrayLike
    """(J, C) booleans: what each job may be given now. All of it."""
    current: ArrayLike
    """The column that it holds, -1 for none. None."""
    weight: ArrayLike
    """How much it counts. 1; `idle-fill` takes jobs below 1 for opportunistic ones."""
    age_s: ArrayLike
    """Seconds since its submit. 0."""
    waited_s: ArrayLike
    """Seconds since it last held slots, or since its submit; 0 while it holds some. Its age, where it holds none."""
    served_s: ArrayLike
    """(J, K) seconds that it has held slots of each kind. 0."""
    served_slot_s: ArrayLike
    """Slot-seconds that it has had. 0."""
    changes: ArrayLike
    """How often its slots were changed. 0."""
    change_s: ArrayLike
    """Seconds of training that a change of its slots costs. 30."""
    remaining: ArrayLike
    """Reference samples left, NaN where unknown. Unknown."""
    requested_slots: ArrayLike
    """The size that a rigid scheduler would give it. 1."""
    job_class: ArrayLike
    """Index of its class: jobs of one class have the same speedups and sizes. 0."""
    thrift: ArrayLike
    share: ArrayLike
    """(J, C) from 0 to 1: what a configuration counts for the price of its market. 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a policy chose.

    `choices` (J,): the column that each job gets, -1 for none. `objective`: what they are worth together, in the unit
    that `unit` names; no choices can be worth more than `bound`. `prices` (K + rows,): what one more slot of each
    kind, then one more unit of each further row, is worth. `utility` (J, C) and `idle` (J,): what each column, and
    having nothing, was worth. `status`: `optimal`, `within_gap`, or `limit` when the effort was spent first.
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
    **jobs: Unpack[JobArrays],
) -> Result:
    """What each of J jobs gets of C configurations (columns) on K kinds of device, by the policy of this name.

    `goodput` (J, C): reference samples per second, 0 where a job cannot run; jobs in the order of their submits.
    `slots`, `kind` (an index), `nodes`, `usd_per_h` (C,): the configurations. `capacity` (K,): slots of each kind.
    `rows`: further limits. `parameters`: the policy's, by name. `gap`: how far below its bound, relatively, the
    choice may stay. `jobs`: see `JobArrays`.

    Raises `ValueError`, saying what to do, for arrays that do not fit together, values that make no sense, and
    policies and parameters that do not exist.
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
        **_job_arrays(jobs, table.shape, len(limits)),
    )
    try:
        rule = registry.policy(policy, parameters)
    except InvalidField as wrong:
        raise ValueError(wrong.message) from wrong
    made = rule.choose(given, partial(solve, gap=gap))
    return Result(
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
    """What `RoundInput` takes, with defaults for what was not given."""
    unknown = given.keys() - JobArrays.__annotations__.keys()
    if unknown:
        known = ", ".join(JobArrays.__annotations__)
        raise ValueError(f"there is no array {min(unknown)!r} of jobs; there are {known}")
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
        "remaining": _numbers("remaining", given.get("remaining", np.nan), (jobs,), or_nan=True),
        "requested_slots": _whole("requested_slots", given.get("requested_slots", 1), jobs, at_least=1),
        "job_class": _whole("job_class", given.get("job_class", 0), jobs),
        "thrift": None if "thrift" not in given else _numbers("thrift", given["thrift"], shape),
        "share": None if "share" not in given else _numbers("share", given["share"], shape[:1]),
    }


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
    """A copy of the value as finite numbers in this shape (None: in its own); one number is one for all."""
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
