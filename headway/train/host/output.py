"""Output of the library to a rank's log. Training continues if the log cannot be written."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from contextlib import ExitStack, suppress
from typing import Final

_WITH_BUFFERS: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_EVENT_WRITER: Final = "SummaryWriter"
"""Class, of TensorBoard and of what imitates it, that keeps events in a queue of its own."""


def warn(sentence: str) -> None:
    """Write a warning to stderr."""
    with suppress(OSError):
        sys.stderr.write(f"headway: {sentence}\n")


def show(line: str) -> None:
    """Write a line for users to stdout."""
    with suppress(OSError):
        sys.stdout.write(f"{line}\n")


def flush() -> None:
    """Write what stdout, stderr and every other open file or event writer of the script still hold, and ignore errors.

    Files that the script leaves open would lose it, because the process ends without the interpreter's own exit.
    """
    held = [one for one in gc.get_objects() if _has_buffer(type(one))]
    for one in sorted(held, key=lambda one: isinstance(one, io.IOBase)):  # a writer first: it writes to files
        with suppress(Exception):
            one.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def _has_buffer(kind: type) -> bool:
    return issubclass(kind, _WITH_BUFFERS) or kind.__name__ == _EVENT_WRITER


exit_actions = ExitStack()
"""Actions at the end of this process, at exit or in `leave`. Each runs once, and the last one added runs first.

A forked child has none of them: they would send its parent's reports again, and wait for threads that it does not have.
"""
atexit.register(exit_actions.close)
os.register_at_fork(after_in_child=exit_actions.pop_all)
