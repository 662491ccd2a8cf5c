"""The request to stop (SIGTERM) as a flag that a script checks. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_UNANNOUNCED_S = 5.0
"""Seconds after which a signal counts that the agent has not announced."""


class StopRequest:
    """SIGTERM as a flag that is checked between steps.

    Args:
        announcement: file that the agent writes before it stops the process. A signal without it comes from elsewhere, such as a
            batch system that takes the host: the agent then mostly orders a change of members, with which the others train on.
            It counts only if the agent has announced nothing for some seconds. None: every signal counts at once.
        clock: monotonic seconds.

    Children that this process forks get the previous handler: nothing in them checks the flag, and a process pool ends
    its workers by SIGTERM.
    """

    def __init__(self, announcement: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._announcement = announcement
        self._clock = clock
        self._arrived_s: float | None = None
        self._counts = False
        self._before: Any = signal.SIG_DFL
        self._wakeup: tuple[int, int] | None = None

    @property
    def received(self) -> bool:
        """True once a stop is requested."""
        if not self._counts and self._arrived_s is not None:
            late = self._clock() - self._arrived_s >= _UNANNOUNCED_S
            self._counts = self._announcement is None or late or self._announcement.exists()
        return self._counts

    def arrive(self) -> None:
        """Record that the signal has arrived."""
        if self._arrived_s is None:
            self._arrived_s = self._clock()

    def listen(self, *, for_threads: bool = False) -> None:
        """Set the flag on SIGTERM from now on. Must be called in the main thread.

        `for_threads`: `poll` notices the signal while the main thread runs no handler, unless the script has a wakeup file.
        """
        global _listening, _follows_forks  # a process has one handler per signal
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        if for_threads:
            self._wakeup = _set_wakeup()
        if not _follows_forks:
            # A signal that reaches a child before it has its handler again would be lost.
            os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_end_in_child)
            _follows_forks = True
        _listening = self

    def poll(self) -> bool:
        """Return True once a stop is requested, also if the main thread waits in C++ code. For one other thread."""
        if self._wakeup is not None and self._arrived_s is None:
            arrived = b""
            with contextlib.suppress(BlockingIOError):
                arrived = os.read(self._wakeup[0], 65_536)
            if signal.SIGTERM in arrived and signal.getsignal(signal.SIGTERM) == self._on_signal:
                self.arrive()
        return self.received

    def ignore(self) -> None:
        """Restore the previous handler of SIGTERM, because no further step will check the flag."""
        signal.signal(signal.SIGTERM, self._before)

    def end(self) -> None:
        """Restore the previous handler of SIGTERM, unless the script has set another one since."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            self.ignore()

    def close_wakeup(self) -> None:
        """Close this process's copy of the file that `poll` reads: signals of a forked child are not its parent's."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is None:
            return
        if (present := signal.set_wakeup_fd(-1)) != wakeup[1]:
            signal.set_wakeup_fd(present)
        for file in wakeup:
            os.close(file)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.arrive()


_listening: StopRequest | None = None
_follows_forks = False
_masks = threading.local()
"""The signals that each thread held back before it forked."""


def _set_wakeup() -> tuple[int, int] | None:
    """Have Python write the number of each signal to a pipe as it arrives, and return its two ends; None if the script has one."""
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    present = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if present == -1:
        return reads, writes
    signal.set_wakeup_fd(present)
    os.close(reads)
    os.close(writes)
    return None


def _hold() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _end_in_child() -> None:
    """Restore the previous handler in a forked child, unless it was replaced since."""
    global _listening
    listening, _listening = _listening, None
    if listening is not None:
        listening.close_wakeup()
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
