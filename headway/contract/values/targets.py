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
    """Return the rule of a target as the job file writes it.

    Raises:
        ValueError: the target does not name one metric with a finite number.
    """
    if len(target) != 1:
        names = ", ".join(sorted(target)) or "none"
        raise ValueError(f"a target has exactly one metric (here: {names}); write for example loss: 1.5")
    ((metric, value),) = target.items()
    if not metric or len(metric) > _MOST_NAME:
        raise ValueError(f"the name of the metric has 1 to {_MOST_NAME} characters, not {len(metric)}")
    falls, number = None, value
    if isinstance(value, str):
        found = _WITH_DIRECTION.fullmatch(value.strip())
        if found is None and not _NUMBER.fullmatch(value.strip()):
            raise ValueError(
                f"{value!r} is no target; write {metric}: 1.5, or {metric}: '<= 1.5' or '>= 1.5'"
            )
        if found is not None:
            falls, number = found[1] == "<=", found[2]
    readable = not isinstance(number, str) or _NUMBER.fullmatch(number.strip())
    numeric = float(number) if readable else math.nan
    if not math.isfinite(numeric):
        raise ValueError(f"{number!r} is no finite number; write for example {metric}: 1.5")
    return TargetRule(metric, numeric, falls)
