"""What a rank may do on its host, and how a forked child gives up everything else, before any code of its job runs.

Standard library only, as everything in the launcher.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worker_agent.launcher import landlock, processes, view

_UMASK = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The bounds of one run's ranks. Without a `uid` they keep the agent's user."""

    uid: int | None = None
    """User and group of the ranks; no entry in the host's list of users is needed."""
    groups: tuple[int, ...] = ()
    """Groups that own devices which the ranks need."""
    reach: tuple[str, ...] = ()
    """Folders that the user must come to, although one above them may be closed to it."""
    private: tuple[str, ...] = ()
    """Folders that ranks of the agent's own user must not see into (Landlock); empty where nothing of the kind is done."""
    own: tuple[str, ...] = ()
    """Folders that are the run's, wherever they lie."""
    written: tuple[str, ...] = ()
    """Folders in which these ranks write files, but make and remove none."""
    code: tuple[str, ...] = ()
    """Folders that these ranks read and execute, but do not change."""
    group: str | None = None
    """The control group of the run; each rank gets one below it."""
    max_processes: int | None = None
    """Processes and threads of the user; only with a `uid`, since the kernel counts by user."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for the launcher's order."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Confinement:
        """The reverse of `to_json`. Fields of a newer agent are ignored.

        Raises:
            TypeError: a value is not what it must be.
        """
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        values: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in known.items()
        }
        return cls(**values)


def enter(confinement: Confinement) -> None:
    """Give up what the confinement does not leave. There is no way back for this process nor for what it starts.

    Raises:
        OSError: the kernel refuses a part of it; nothing of the job may run then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(_UMASK)
    if confinement.uid is not None:
        _become(confinement, confinement.uid)
    elif confinement.private:
        processes.drop_capabilities()
    processes.forbid_new_privileges()
    if confinement.private:
        landlock.restrict(
            landlock.Bounds(
                private=_paths(confinement.private),
                own=_paths(confinement.own),
                written=_paths(confinement.written),
                code=_paths(confinement.code),
            )
        )


def _become(confinement: Confinement, uid: int) -> None:
    view.open_up(_paths(confinement.reach))
    if confinement.max_processes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        most = (
            confinement.max_processes
            if hard == resource.RLIM_INFINITY
            else min(hard, confinement.max_processes)
        )
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.setgroups(confinement.groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # A change of user clears both: the rank must still die with its launcher, and find its own files in /proc.
    processes.die_with_parent()
    processes.set_dumpable(yes=True)


def _paths(names: Sequence[str]) -> list[Path]:
    return [Path(name) for name in names]
