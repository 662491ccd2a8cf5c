"""Processor time and memory of processes of this machine, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Processor seconds that a process and its descendants have used so far, and their present memory."""

    at_s: float
    cpu_s: float
    memory_bytes: int


def usage_of(processes: dict[str, int]) -> dict[str, Usage]:
    """Return the usage by name, for process ids by name."""
    now_s, children = time.monotonic(), _children()
    found = {}
    for name, root in processes.items():
        tree = list(_tree(root, children))
        found[name] = Usage(now_s, sum(map(_cpu_s, tree)), sum(map(_memory_bytes, tree)))
    return found


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def _tree(root: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield root
    for child in children.get(root, []):
        yield from _tree(child, children)


def _stat(pid: int) -> list[str]:
    """Return the fields from the state on; the name before it may contain any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of the process and of its children that have ended."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS_PER_S if fields else 0.0


def _memory_bytes(pid: int) -> int:
    """Return the proportional set size: memory that several processes share counts once in total."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
