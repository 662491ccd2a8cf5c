"""Sweeps: the trials of a space of parameters, the best of them, and the trials that a request changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from headway.contract.spec import JobSpec
from headway.contract.spec_sweep import Range, Space, Sweep, SweepSpec
from headway.contract.views.jobs import TERMINAL_STATES, JobState
from service.domain.jobs.job import Job

Uniform: TypeAlias = Callable[[], float]
"""Source of numbers that are uniformly distributed from 0 (included) to 1 (excluded)."""
Value: TypeAlias = int | float | str
_MOST_DRAWS: Final = 100
"""Draws of a trial that repeat earlier combinations, after which a repetition is taken."""


def combinations(sweep: Sweep, uniform: Uniform) -> Iterator[dict[str, Value]]:
    """Yield the parameters of each trial.

    A grid varies its last parameter fastest. Random trials take one number of `uniform` for each parameter, in their
    order, so that more trials of the same numbers begin with the same ones.
    """
    names = list(sweep.parameters)
    if sweep.search == "grid":
        lists = [space for space in sweep.parameters.values() if not isinstance(space, Range)]
        for values in itertools.product(*lists):
            yield dict(zip(names, values, strict=True))
        return
    seen: set[tuple[Value, ...]] = set()
    for _ in range(sweep.count):
        for _ in range(_MOST_DRAWS):
            drawn = tuple(draw(space, uniform()) for space in sweep.parameters.values())
            if drawn not in seen:
                break
        seen.add(drawn)
        yield dict(zip(names, drawn, strict=True))


def draw(space: Space, share: float) -> Value:
    """Return the value of a space at a share from 0 to 1 of its probability, below 1."""
    if not isinstance(space, Range):
        return space[min(int(share * len(space)), len(space) - 1)]
    low, high = float(space.min), float(space.max) + (1 if space.whole else 0)
    if space.log:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return min(max(math.floor(value) if space.whole else value, space.min), space.max)


def trials_of(spec: SweepSpec, uniform: Uniform) -> list[JobSpec]:
    """Return the jobs of a sweep. Trial 3 of the sweep `gpt` is called `gpt-3`."""
    fields = spec.model_dump(mode="json", by_alias=True, exclude={"sweep"}, exclude_unset=True)
    shared = JobSpec.model_validate(fields)
    return [
        shared.model_copy(
            update={"name": f"{spec.name}-{number}", "parameters": {**spec.parameters, **parameters}}
        )
        for number, parameters in enumerate(combinations(spec.sweep, uniform), start=1)
    ]


def best_of(sweep: Sweep, values: Mapping[int, float]) -> int | None:
    """Return the number of the trial with the best value of the metric, the lowest number of equals; None without values."""
    sign = 1 if sweep.goal == "minimise" else -1
    return min(values, key=lambda number: (sign * values[number], number), default=None)


class GroupRequest(StrEnum):
    """Requests about all trials of a sweep."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    PRIORITISE = "prioritise"


def takes(job: Job, request: GroupRequest) -> bool:
    """Return True if a request about the sweep changes this trial: those that have ended, or are ending, stay as they are.

    A sweep is resumed as it was paused: trials that failed or were cancelled are resumed one by one.
    """
    if job.state in TERMINAL_STATES:
        return False
    if request is GroupRequest.CANCEL:
        return True
    if job.state is JobState.CANCELLING:
        return False
    return request is not GroupRequest.RESUME or job.state is JobState.PAUSED or job.pause_requested
