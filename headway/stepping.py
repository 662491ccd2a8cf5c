"""Progress reports of a script that does not use the training library. Standard library only."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import SupportsFloat

from headway.contract.rank_lines import to_line
from headway.contract.runtime import ENV_CONTROL, ENV_GENERATION, Stepped, message_file

EVERY_S = 0.5
"""Minimum time between two reports. Steps in between are left out, except for the last one."""


class Stepper:
    """Reporter that sends rank 0's steps to the agent. It never fails or delays the script.

    Args:
        control: control folder; None outside Headway, where nothing is reported.
        generation: generation of the job's allocation.
        now_s: function that returns Unix time.
    """

    def __init__(self, control: Path | None, generation: int, now_s: Callable[[], float] = time.time) -> None:
        self._path = None if control is None else control / message_file(0)
        self._generation = generation
        self._now_s = now_s
        self._reported_s = float("-inf")
        self._waiting: tuple[float, int, int | None, dict[str, SupportsFloat]] | None = None

    @classmethod
    def of_process(cls) -> Stepper:
        """Return the reporter of this process, according to its environment. Only rank 0 reports."""
        control = os.environ.get(ENV_CONTROL)
        is_main = os.environ.get("RANK", "0") == "0"
        generation = os.environ.get(ENV_GENERATION, "")
        known = control and is_main and generation.isdecimal()
        stepper = cls(Path(control) if control and known else None, int(generation) if known else 0)
        if known:
            atexit.register(stepper.flush)
            os.register_at_fork(after_in_child=stepper.forget)
        return stepper

    def step(self, step: int, total: int | None, metrics: dict[str, SupportsFloat]) -> None:
        """Report a step if it is due. Otherwise keep it for the next call or the end of the process."""
        if self._path is None:
            return
        now_s = self._now_s()
        self._waiting = (now_s, step, total, metrics)
        if now_s - self._reported_s >= EVERY_S or now_s < self._reported_s or step == total:
            self.flush()

    def forget(self) -> None:
        """Drop the pending step: a forked child leaves it to its parent."""
        self._waiting = None

    def flush(self) -> None:
        """Report the pending step, without values that are not numbers."""
        if self._path is None or self._waiting is None:
            return
        at_s, step, total, metrics = self._waiting
        self._waiting, self._reported_s = None, at_s
        values: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                values[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                continue
        message = Stepped(
            rank=0, generation=self._generation, at_s=at_s, step=step, total=total, values=values
        )
        # After an error, the next report reaches the agent.
        with suppress(OSError), self._path.open("ab", buffering=0) as file:
            file.write(to_line(message).encode())


_stepper: Stepper | None = None


def progress(step: int, total: int | None = None, **metrics: SupportsFloat) -> None:
    """Report the progress of this script, on rank 0 of a job; elsewhere it does nothing.

    The function is for scripts without `headway.init()`: their jobs then have forecasts, plots and speeds.
    Call it after every step, or after some steps. It costs about a microsecond, and twice a second a short
    write to a file.

    Args:
        step: number of the step since the start of the whole training. A script that resumes continues the
            count, which is how Headway knows that it resumes.
        total: number of the last step; None if unknown.
        metrics: values to plot, such as `loss=0.5`. Anything that `float` accepts, such as a tensor with one
            element.

    Raises:
        TypeError: a step is not a whole number.
        ValueError: a step is negative.
    """
    global _stepper  # a process is one rank
    count = _count("step", step)
    whole = None if total is None else _count("total", total)
    if _stepper is None:
        _stepper = Stepper.of_process()
    _stepper.step(count, whole, metrics)


def _count(name: str, value: int) -> int:
    count = int(value)
    if count != value:
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    if count < 0:
        raise ValueError(f"{name} is {count}; it must be at least 0")
    return count
