"""Target of a job: the value of a metric at which the job ends (`goal.target`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

TargetText: TypeAlias = Mapping[str, float | str]
"""One metric and its value, as in the job file: `{loss: 1.5}`, or `{accuracy: ">= 0.95"}` with a direction."""
_WITH_DIRECTION = re.compile(r"(<=|>=)\s*(\S+)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A number as people write it. YAML 1.1 reads 1e-3 and -.5 as text."""
_MOST_NAME = 128


@dataclass(frozen=True, slots=True)
class TargetRule:
    """A metric, its value, and the direction: True if the metric falls to the value, None if its values show it."""

    metric: str
    value: float
    falls: bool | None


def target_rule(target: TargetText) -> TargetRule:
    """Return the rule of a target as the job file writes it, or as it was stored: see `target_problem`.

    Raises:
        ValueError: the target does not name one metric with a finite number.
    """
    if len(target) != 1:
        names = ", ".join(sorted(target)) or "none"
        raise ValueError(f"a target has exactly one metric (here: {names}); write for example loss: 1.5")
    ((metric, value),) = target.items()
    if not metric or len(metric) > _MOST_NAME:
        raise ValueError(f"the name of the metric has 1 to {_MOST_NAME} characters, not {len(metric)}")
    falls, number = _parts(value)
    try:
        numeric = float(number)
    except ValueError:
        raise ValueError(_no_target(metric, value)) from None
    if not math.isfinite(numeric):
        raise ValueError(f"{number!r} is no finite number; write for example {metric}: 1.5")
    return TargetRule(metric, numeric, falls)


def target_problem(target: TargetText) -> str:
    """Return why a target is refused at a submit although it can be read, such as `>= 1_0`; empty if it is not.

    A stored target is read by what Python takes for a number, as that of a job that was submitted before the form was checked.
    """
    for metric, value in target.items():
        number = _parts(value)[1]
        if isinstance(number, str) and not _NUMBER.fullmatch(number):
            return _no_target(metric, value)
    return ""


def _parts(value: float | str) -> tuple[bool | None, float | str]:
    """Return the direction of a target and its number, as written."""
    if not isinstance(value, str):
        return None, value
    found = _WITH_DIRECTION.fullmatch(value.strip())
    return (None, value.strip()) if found is None else (found[1] == "<=", found[2])


def _no_target(metric: str, value: float | str) -> str:
    return f"{value!r} is no target; write {metric}: 1.5, or {metric}: '<= 1.5' or '>= 1.5'"
