"""The request to stop (SIGTERM) as a flag that a script checks. Standard library only."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """SIGTERM as a flag that is checked between steps.

    Children that this process forks get the previous handler: nothing in them checks the flag, and a process pool ends
    its workers by SIGTERM.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: Any = signal.SIG_DFL

    def listen(self) -> None:
        """Set the flag on SIGTERM from now on. Must be called in the main thread."""
        global _listening, _follows_forks  # a process has one handler per signal
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        if not _follows_forks:
            # A signal that reaches a child before it has its handler again would be lost.
            os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_end_in_child)
            _follows_forks = True
        _listening = self

    def ignore(self) -> None:
        """Restore the previous handler of SIGTERM, because no further step will check the flag."""
        signal.signal(signal.SIGTERM, self._before)

    def end(self) -> None:
        """Restore the previous handler of SIGTERM, unless the script has set another one since."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            self.ignore()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


_listening: StopRequest | None = None
_follows_forks = False
_masks = threading.local()
"""The signals that each thread held back before it forked."""


def _hold() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _end_in_child() -> None:
    """Restore the previous handler in a forked child, unless it was replaced since."""
    global _listening
    listening, _listening = _listening, None
    if listening is not None:
        listening.end()
    _release()


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
