"""Detection of processes that the kernel killed for lack of memory, from its counters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_AT_ONCE_S = 5.0
"""Seconds within which the kernel kills all processes for one lack of memory."""


class MemoryKills:
    """Comparison of the kernel's counter with its earlier value."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._known = count()
        self._rose_s: float | None = None

    def just_happened(self, now_s: float) -> bool:
        """Return True if the counter rose since the last call, or within the last seconds before `now_s`."""
        count = self._count()
        if count > self._known:
            self._known, self._rose_s = count, now_s
        return self._rose_s is not None and now_s - self._rose_s <= _AT_ONCE_S


def counter(root: Path = Path("/")) -> Callable[[], int]:
    """Return a counter of kills in this process's control group (version 2 or 1), or else on the host."""
    group = _group(root)
    places = (
        (root / "sys/fs/cgroup" / group / "memory.events", "oom_kill"),
        (root / "sys/fs/cgroup/memory" / group / "memory.oom_control", "oom_kill"),
        (root / "proc/vmstat", "oom_kill"),
    )
    path, name = next(((path, name) for path, name in places if _read(path, name) is not None), places[-1])
    return lambda: _read(path, name) or 0


def _group(root: Path) -> str:
    """Return the control group of this process, as a path below the mount of its memory controller."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            return path.lstrip("/")
    return ""


def _read(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
