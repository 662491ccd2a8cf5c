"""What the library says in a rank's log. A log that cannot be written, on a full disk say, is no reason to stop training."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress


def complain(sentence: str) -> None:
    """Say what is not as it should be."""
    with suppress(OSError):
        sys.stderr.write(f"headway: {sentence}\n")


def show(line: str) -> None:
    """Say what people want to read."""
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")


def flush() -> None:
    """Have everything written, as far as that goes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


class Ending:
    """What is to be done before this process ends, however it does. Each action is done once."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._registered = False

    def before(self, action: Callable[[], None]) -> None:
        """Have `action` done, the last one given first."""
        if not self._registered:
            atexit.register(self.come)
        self._registered = True
        self._actions.append(action)

    def come(self) -> None:
        """The process ends now."""
        while self._actions:
            self._actions.pop()()


ending = Ending()
"""Of this process: it has one end."""
