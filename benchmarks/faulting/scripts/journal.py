"""Journal of a rank for the checker. The module uses only the standard library.

Each process has one file with one JSON line per fact. Each line is written by one `write` to a descriptor in append mode, so
that a kill leaves complete lines. Times are seconds since the boot of the host.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Journal of this process, in the folder that `JOURNAL` names."""

    def __init__(self) -> None:
        control = Path(os.environ["HEADWAY_CONTROL"])
        command = json.loads((control.parent / "command.json").read_text(encoding="utf-8"))
        born_rank = int(os.environ["HEADWAY_MEMBER"].partition(".")[2])
        slot = next(one["slot"] for one in command["ranks"] if one["rank"] == born_rank)
        job, generation = os.environ["HEADWAY_JOB_ID"], int(os.environ["HEADWAY_GENERATION"])
        path = Path(os.environ["JOURNAL"]) / f"{job}-{generation}-{born_rank}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        self.write(
            "begin",
            job=job,
            name=os.environ["HEADWAY_JOB_NAME"],
            generation=generation,
            rank=born_rank,
            pid=os.getpid(),
            ticks=ticks,
            born_s=ticks / os.sysconf("SC_CLK_TCK"),
            node=control.parents[3].name,
            slot=slot,
        )

    def write(self, kind: str, **fields: Any) -> None:
        """Append one fact."""
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = json.dumps({"kind": kind, "at_s": at_s, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
