"""The record of a run: what was done and what happened, one JSON line each."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


def boot_s() -> float:
    """Seconds since the host booted: the clock of the record and of all journals."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Record:
    """A file that several threads append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self.began_s = boot_s()

    def note(self, what: str, **fields: Any) -> None:
        """Append a line: what happened, when, and what is to say of it."""
        line = json.dumps({"at_s": round(boot_s() - self.began_s, 3), "what": what, **fields}, default=str)
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """No more is written."""
        with self._lock:
            self._file.close()
