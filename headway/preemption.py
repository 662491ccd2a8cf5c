"""The request to stop (SIGTERM) as a flag that a script checks. Standard library only."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """SIGTERM as a flag that is checked between steps."""

    def __init__(self) -> None:
        self.received = False
        self._before: Any = signal.SIG_DFL

    def listen(self) -> None:
        """Set the flag on SIGTERM from now on. Must be called in the main thread."""
        global _listening  # a process has one handler per signal
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        _listening = self

    def ignore(self) -> None:
        """Restore the previous handler of SIGTERM, because no further step will check the flag."""
        signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


_listening: StopRequest | None = None


def preempted() -> bool:
    """Return whether this process was asked to stop.

    From that moment the job's grace period runs, and SIGKILL follows. A script that uses `headway.init()`
    need not call this: training stops and saves a checkpoint at the next step boundary. Any other script
    calls this between steps, in its main thread. From the first call on, SIGTERM only sets the flag. When
    this returns True, the script saves its state and exits with code 143.
    """
    if _listening is None:
        StopRequest().listen()
        return False
    return _listening.received
