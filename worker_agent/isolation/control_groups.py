"""Control groups (version 2) of runs, for limits on resources and for the list of each rank's processes.

    <base>/agent/                         the agent and its launcher, where controllers need that
    <base>/headway-<state folder>/
        <job>.<generation>/               the limits of a run
            rank-N/                       the processes of one rank: no descendant can leave it

`base` is the agent's own group, if it is delegated to the agent (`Delegate=yes` of systemd, root, or a
container that may write there). Without write access there are no groups. The launcher uses this module too,
so it imports only the standard library.
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
    """Control groups of one agent. `controllers` are the controllers whose limits are enforced."""

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
        """Create the group of a run (`<job>/<generation>`) and set the limits for which a controller is available.

        Raises:
            OSError: the group cannot be created.
        """
        group = self._folder / run.replace("/", ".")
        # A clean-up program on the host may have removed the empty parent group.
        group.mkdir(parents=True, exist_ok=True)
        quota_us = None if cpus is None else max(1000, round(cpus * _CPU_PERIOD_US))
        bounds = {
            "cpu.max": None if quota_us is None else f"{quota_us} {_CPU_PERIOD_US}",
            "memory.max": memory_bytes,
            "pids.max": max_processes,
        }
        for name, value in bounds.items():
            if value is not None and name.partition(".")[0] in self.controllers:
                (group / name).write_text(str(value), encoding="utf-8")
        return group


def find(state: Path, root: Path = Path("/")) -> ControlGroups | None:
    """Return the groups for the agent with this state folder, or None if the agent may not create any."""
    base = _own_group(root)
    if base is None:
        return None
    if base.name == _AGENT:  # an earlier agent, or systemd, moved the processes here
        base = base.parent
    folder = base / f"headway-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(exist_ok=True)
        if not os.access(folder / "cgroup.procs", os.W_OK):
            return None
    except OSError:
        return None
    there = _words(base / "cgroup.controllers") & set(_CONTROLLERS)
    return ControlGroups(folder, _enable_controllers(base, folder, there))


def of_rank(group: str | Path | None, rank: int) -> Path | None:
    """Return the group of one rank of a run."""
    return None if group is None else Path(group) / f"rank-{rank}"


def join(rank_group: Path) -> None:
    """Move this process into the group of its rank; all processes that it starts follow.

    Raises:
        OSError: the group of the run does not exist, or is closed.
    """
    rank_group.mkdir(exist_ok=True)
    (rank_group / "cgroup.procs").write_text("0", encoding="utf-8")


def members(group: Path) -> list[int]:
    """Return the processes in the group and in its subgroups."""
    found = []
    for one in [group, *(entry for entry in _below(group))]:
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (one / "cgroup.procs").read_text(encoding="utf-8").split()]
    return found


def kill(group: Path) -> None:
    """Send SIGKILL to every process in the group at once.

    Kernels before 5.14 do not support this; the caller then has to kill the processes.
    """
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1", encoding="utf-8")


def remove(group: Path) -> None:
    """Remove the group and its subgroups, once no process is left in them."""
    for one in [*_below(group), group]:
        with contextlib.suppress(OSError):
            one.rmdir()


def _below(group: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(group) if entry.is_dir()]
    except OSError:
        return []


def _own_group(root: Path) -> Path | None:
    """Return the folder of this process's group in the version 2 hierarchy, or None without one."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
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


def _enable_controllers(base: Path, folder: Path, wanted: set[str]) -> frozenset[str]:
    """Enable the wanted controllers for groups in `folder`, and return those that are enabled."""
    for group in (base, folder):
        missing = wanted - _words(group / "cgroup.subtree_control")
        if missing and not _enable(group, missing) and group == base:
            # A group that contains processes cannot delegate controllers. Move them to a subgroup if they are
            # all ours.
            with contextlib.suppress(OSError):
                join(base / _AGENT)
            _enable(group, missing)
    return frozenset(_words(folder / "cgroup.subtree_control") & wanted)


def _enable(group: Path, controllers: set[str]) -> bool:
    try:
        (group / "cgroup.subtree_control").write_text(
            " ".join(f"+{name}" for name in sorted(controllers)), encoding="utf-8"
        )
    except OSError:
        return False
    return True


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="utf-8").split())
    except OSError:
        return set()
