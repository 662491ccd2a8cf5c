"""Output of the library to a rank's log. Training continues if the log cannot be written."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress


def complain(sentence: str) -> None:
    """Write a warning to stderr."""
    with suppress(OSError):
        sys.stderr.write(f"headway: {sentence}\n")


def show(line: str) -> None:
    """Write a line for users to stdout."""
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")


def flush() -> None:
    """Flush stdout and stderr, and ignore errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


class Ending:
    """Actions to run before this process ends, in whatever way it ends. Each action runs once."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._registered = False

    def before(self, action: Callable[[], None]) -> None:
        """Register `action`; actions run in reverse order of registration."""
        if not self._registered:
            atexit.register(self.come)
        self._registered = True
        self._actions.append(action)

    def come(self) -> None:
        """Run the registered actions before the process ends."""
        while self._actions:
            self._actions.pop()()


ending = Ending()
"""Actions before the end of this process."""
