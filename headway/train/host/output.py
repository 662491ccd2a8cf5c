"""Output of the library to a rank's log. Training continues if the log cannot be written."""

from __future__ import annotations

import atexit
import sys
from contextlib import ExitStack, suppress


def warn(sentence: str) -> None:
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


exit_actions = ExitStack()
"""Actions at the end of this process, at exit or in `leave`. Each runs once, and the last one added runs first."""
atexit.register(exit_actions.close)
