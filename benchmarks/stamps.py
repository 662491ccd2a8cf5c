"""The times at which a job's steps ended, and how long a change of its size held it up. Pure but for reading.

Rank 0 writes one line for each step: `time world_size`, in seconds on a clock that all processes share.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """A step ended at `at_s`, taken by so many ranks."""

    at_s: float
    world_size: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A change of size: from the last step before to the first step after, less one normal step of the new size."""

    before: int
    after: int
    pause_s: float

    @property
    def grows(self) -> bool:
        return self.after > self.before


def read(file: Path) -> list[Stamp]:
    """What has been written so far. A line that is being written is left out."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [Stamp(float(at_s), int(world_size)) for at_s, world_size in fields]


def pauses(stamps: Sequence[Stamp]) -> list[Pause]:
    """Every change of size that is followed by two steps or more."""
    found = []
    same = [list(group) for _, group in itertools.groupby(stamps, key=lambda one: one.world_size)]
    for old, new in itertools.pairwise(same):
        if len(new) < 3:
            continue
        pause_s = new[0].at_s - old[-1].at_s - step_s(new)
        found.append(Pause(old[-1].world_size, new[0].world_size, pause_s))
    return found


def step_s(stamps: Sequence[Stamp]) -> float:
    """How long a step takes."""
    return statistics.median(after.at_s - before.at_s for before, after in itertools.pairwise(stamps))
