"""What the library says in a rank's log. A log that cannot be written, on a full disk say, is no reason to stop training."""

from __future__ import annotations

import sys
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
