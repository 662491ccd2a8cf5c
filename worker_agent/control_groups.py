"""Control groups (version 2) of runs: bounds for memory, processors and processes, and a hold on all that a rank starts.

    <base>/agent/                         the agent and its launcher, where controllers need that
    <base>/headway-<state folder>/
        <job>.<generation>/               the bounds of a run
            rank-N/                       the processes of one rank: what it starts cannot leave it

`base` is the agent's own group, as far as it was delegated to it (`Delegate=yes` of systemd, root, or a container that may
write there). Standard library only: the launcher uses it too. Where nothing can be written, there are no groups.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

_CONTROLLERS = ("cpu", "memory", "pids")
_AGENT = "agent"
_CPU_PERIOD_US = 100_000


class ControlGroups:
    """The groups of one agent. `controllers` are those whose bounds hold."""

    def __init__(self, folder: Path, controllers: frozenset[str]) -> None:
        self._folder = folder
        self.controllers = controllers

    def make(
        self,
        run: str,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        max_processes: int | None = None,
    ) -> Path:
        """The group of a run (`<job>/<generation>`) with these bounds, as far as there are controllers for them.

        Raises:
            OSError: it cannot be made.
        """
        group = self._folder / run.replace("/", ".")
        # Whoever cleans up after groups may have removed an empty one above it.
        group.mkdir(parents=True, exist_ok=True)
        quota_us = None if cpus is None else max(1000, round(cpus * _CPU_PERIOD_US))
        bounds = {
            "cpu.max": None if quota_us is None else f"{quota_us} {_CPU_PERIOD_US}",
            "memory.max": memory_bytes,
            "pids.max": max_processes,
        }
        for name, value in bounds.items():
            if value is not None and name.partition(".")[0] in self.controllers:
                (group / name).write_text(str(value))
        return group


def find(state: Path, root: Path = Path("/")) -> ControlGroups | None:
    """The groups for the agent with this state folder; None where it may make none."""
    base = _own_group(root)
    if base is None:
        return None
    if base.name == _AGENT:  # where an agent before this one, or systemd, has put it
        base = base.parent
    folder = base / f"headway-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(exist_ok=True)
        if not os.access(folder / "cgroup.procs", os.W_OK):
            return None
    except OSError:
        return None
    there = _words(base / "cgroup.controllers") & set(_CONTROLLERS)
    return ControlGroups(folder, _enabled(base, folder, there))


def of_rank(group: str | Path | None, rank: int) -> Path | None:
    """The group of one rank of a run."""
    return None if group is None else Path(group) / f"rank-{rank}"


def join(rank_group: Path) -> None:
    """Put this process, and all that it will start, into the group of its rank.

    Raises:
        OSError: the group of its run is not there, or closed.
    """
    rank_group.mkdir(exist_ok=True)
    (rank_group / "cgroup.procs").write_text("0")


def members(group: Path) -> list[int]:
    """Processes in the group and in those below it."""
    found = []
    for one in [group, *(entry for entry in _below(group))]:
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (one / "cgroup.procs").read_text().split()]
    return found


def kill(group: Path) -> None:
    """SIGKILL to everything in the group at once; kernels before 5.14 have no word for that, and leave it to the caller."""
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")


def remove(group: Path) -> None:
    """Remove the group and those below it, once nothing runs there."""
    for one in [*_below(group), group]:
        with contextlib.suppress(OSError):
            one.rmdir()


def _below(group: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(group) if entry.is_dir()]
    except OSError:
        return []


def _own_group(root: Path) -> Path | None:
    """The folder of this process's group in the hierarchy of version 2."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[len("0::") :] for line in groups if line.startswith("0::")), None)
    for line in mounts:
        fields, _, kind = line.partition(" - ")
        if own is not None and kind.split()[:1] == ["cgroup2"]:
            top, place = fields.split()[3:5]
            below = os.path.relpath(own, top)
            if not below.startswith(".."):
                return (root / place.lstrip("/") / below).resolve()
    return None


def _enabled(base: Path, folder: Path, wanted: set[str]) -> frozenset[str]:
    """Those of the controllers that hold for groups in `folder`, after trying to have all of them."""
    for group in (base, folder):
        missing = wanted - _words(group / "cgroup.subtree_control")
        if missing and not _enable(group, missing) and group == base:
            # A group with processes of its own passes nothing on: make room, if they are ours alone.
            with contextlib.suppress(OSError):
                join(base / _AGENT)
            _enable(group, missing)
    return frozenset(_words(folder / "cgroup.subtree_control") & wanted)


def _enable(group: Path, controllers: set[str]) -> bool:
    try:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(controllers)))
    except OSError:
        return False
    return True


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()
