"""End times of a job's steps, and the pauses at its changes of size.

Rank 0 writes one line for each step: `time world_size`. The time is in seconds of a clock that all processes share.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stamp:
    """End of a step of `world_size` ranks."""

    at_s: float
    world_size: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause at a change of size: from the last step before to the first step after, less one normal new step."""

    before: int
    after: int
    pause_s: float

    @property
    def grows(self) -> bool:
        return self.after > self.before


class Sized(Protocol):
    """A step of `world_size` ranks."""

    @property
    def world_size(self) -> int: ...


def complete_lines(file: Path) -> list[str]:
    """Return the lines of a file that may not exist yet, without a last one that is being written."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith("\n")]


def ends_with(steps: Sequence[Sized], count: int, world_size: int) -> bool:
    """Return True if the last `count` steps were all of this size."""
    last = steps[-count:]
    return len(last) == count and all(one.world_size == world_size for one in last)


def read(file: Path) -> list[Stamp]:
    """Return the complete steps that the file has."""
    fields = [line.split() for line in complete_lines(file)]
    return [Stamp(float(at_s), int(world_size)) for at_s, world_size in fields]


def pauses(stamps: Sequence[Stamp]) -> list[Pause]:
    """Return the pause of every change of size that at least three steps follow."""
    found = []
    same = [list(group) for _, group in itertools.groupby(stamps, key=lambda one: one.world_size)]
    for old, new in itertools.pairwise(same):
        if len(new) < 3:
            continue
        pause_s = new[0].at_s - old[-1].at_s - step_s(new)
        found.append(Pause(old[-1].world_size, new[0].world_size, pause_s))
    return found


def step_s(stamps: Sequence[Stamp]) -> float:
    """Return the median seconds of a step."""
    return statistics.median(after.at_s - before.at_s for before, after in itertools.pairwise(stamps))
