"""Step times as sufficient statistics, sent now and then."""

from __future__ import annotations

import time

from headway.contract import runtime
from headway.train.control import Messenger

_SEND_EVERY_S = 0.5


class ProgressMeter:
    """Times steps and sends what they add up to. The first step of a process is left out: it warms up."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._began_s = 0.0
        self._warm = False
        self._sent_s = 0.0
        self._steps = 0
        self._sum_s = 0.0
        self._squares = 0.0
        self._latest: dict[str, int | None] = {}

    def begin_step(self) -> None:
        """A step begins."""
        self._began_s = time.monotonic()

    def end_step(
        self,
        *,
        epoch: int,
        samples: int,
        total_samples: int | None,
        global_batch: int,
        local_batch: int,
        accumulation: int,
    ) -> None:
        """A step is committed."""
        now_s = time.monotonic()
        step_s = now_s - self._began_s
        self._latest = {
            "epoch": epoch,
            "samples": samples,
            "total_samples": total_samples,
            "global_batch": global_batch,
            "local_batch": local_batch,
            "accumulation": accumulation,
        }
        if not self._warm:
            self._warm = True
            self._messenger.send(runtime.FirstStep, samples=samples)
            return
        self._steps += 1
        self._sum_s += step_s
        self._squares += step_s * step_s
        if now_s - self._sent_s >= _SEND_EVERY_S:
            self._sent_s = now_s
            self.flush()

    def flush(self) -> None:
        """Send what was not sent yet."""
        if not self._latest:
            return
        self._messenger.send(
            runtime.Progress,
            steps=self._steps,
            step_s_sum=self._sum_s,
            step_s_squares=self._squares,
            **self._latest,
        )
        self._steps, self._sum_s, self._squares, self._latest = 0, 0.0, 0.0, {}
