"""Record of the faults, actions and events of a run, as JSON lines."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from worker_agent.host.folders import boot_s


class Record:
    """File that several threads append to. Times are seconds since the start of the run, by the boot-time clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self.began_s = boot_s()

    def note(self, what: str, **fields: Any) -> None:
        """Append an event with the present time and these fields."""
        line = json.dumps({"at_s": round(boot_s() - self.began_s, 3), "what": what, **fields}, default=str)
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
