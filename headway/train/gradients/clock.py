"""The progress of training as learning-rate schedules read it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Progress of training: steps and samples as read, and in units of the job's own batch.

    `within_step`: the script works on the last of these steps, which is not committed yet.
    """

    steps: int = 0
    reference_steps: float = 0.0
    samples: int = 0
    progress: float = 0.0
    within_step: bool = False
