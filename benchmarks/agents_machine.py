"""What processes of this machine use, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Processor seconds so far, of a process and its descendants, and the memory that is theirs now."""

    at_s: float
    cpu_s: float
    memory_bytes: int


def usage_of(processes: dict[str, int]) -> dict[str, Usage]:
    """By name, of processes by name and id."""
    now_s, children = time.monotonic(), _children()
    found = {}
    for name, root in processes.items():
        family = list(_family(root, children))
        found[name] = Usage(now_s, sum(map(_cpu_s, family)), sum(map(_memory_bytes, family)))
    return found


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def _family(root: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield root
    for child in children.get(root, []):
        yield from _family(child, children)


def _stat(pid: int) -> list[str]:
    """From the state on: the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    """Of itself and of children that have ended."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS_PER_S if fields else 0.0


def _memory_bytes(pid: int) -> int:
    """Proportional: what several share counts once in all."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
