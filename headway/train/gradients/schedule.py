"""Learning-rate schedules that follow the progress of training."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.clock import Clock

_STATE = "headway_progress"
"""Key of the wrapper's own state beside that of the scheduler."""
_ROUNDING = 1e-9


class OncePerBatch:
    """A learning-rate scheduler whose `step` does nothing while a global batch is incomplete.

    A call is worth the progress since the last call: within steps, in steps of the job's own batch for each step taken;
    between steps, in reference samples for each sample read. The scheduler advances by whole steps, and the remainder
    is kept (the scale-invariant iterations of AdaScale). With a constant batch each call is one step. Everything else
    belongs to the wrapped scheduler.
    """

    def __init__(self, scheduler: LRScheduler, gradients: Gradients) -> None:
        self.wrapped_kind = type(scheduler).__qualname__
        self._scheduler = scheduler
        self._gradients = gradients
        self._last = Clock()
        self._rest = 0.0
        self._restored = False
        """True if the state has the progress of a job whose batch may change, before its data are known."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler as often as the progress since the last call requires.

        A scheduler that is given a value, such as a metric, takes one step with it.
        """
        if self._gradients.accumulating or self._gradients.broken or self._gradients.parts.passed_over:
            return
        due = self._due()
        if args or kwargs:
            self._scheduler.step(*args, **kwargs)
            return
        for _ in range(due):
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, with the progress at the last call if the batch may change."""
        state = self._scheduler.state_dict()
        if self._gradients.probe is None and not self._restored:
            return state
        return {**state, _STATE: {"rest": self._rest, **asdict(self._last)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state with or without the progress at the last call."""
        state = dict(state_dict)
        own = dict(state.pop(_STATE, None) or {"rest": 0.0})
        self._restored = len(own) > 1
        self._rest = own.pop("rest")
        self._last = Clock(**own)
        self._scheduler.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _due(self) -> int:
        """Return the number of steps that the scheduler has to take now."""
        now, last = self._gradients.clock, self._last
        self._last = now
        taken, worth = now.samples - last.samples, now.progress - last.progress
        if now.within_step:
            taken, worth = now.steps - last.steps, now.reference_steps - last.reference_steps
        self._rest += worth / taken if taken > 0 else 1.0
        due = math.floor(self._rest + _ROUNDING)
        self._rest -= due
        return due
