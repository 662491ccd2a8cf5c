"""The request to stop: SIGTERM, as a flag that a script looks at. Standard library only."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """SIGTERM, as a flag that is looked at between steps."""

    def __init__(self) -> None:
        self.received = False
        self._before: Any = signal.SIG_DFL

    def listen(self) -> None:
        """From now on SIGTERM sets the flag. Must be called in the main thread."""
        global _listening  # a process has one handler of a signal
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        _listening = self

    def ignore(self) -> None:
        """There are no more steps to stop between: SIGTERM does what it did before."""
        signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


_listening: StopRequest | None = None


def preempted() -> bool:
    """Whether this process was asked to stop: it has the job's grace from then on, and SIGKILL follows.

    A script that uses `headway.init()` need not ask: training stops and checkpoints by itself at the next step
    boundary. One that does not calls this between steps, in its main thread; from the first call on SIGTERM
    only sets the flag. It then saves what it needs and exits with code 143.
    """
    if _listening is None:
        StopRequest().listen()
        return False
    return _listening.received
