"""Confinement of a rank on its host, applied by the forked child before any code of its job runs.

The module imports only the standard library and other modules of the launcher.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_agent.launcher import landlock, processes, system_calls, view

PRIVATE_UMASK = 0o077
"""Umask without any permission for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Limits and permissions of one run's ranks. Without a `uid` they keep the agent's user."""

    uid: int | None = None
    """User and group id of the ranks. The host's list of users needs no entry for it."""
    groups: tuple[int, ...] = ()
    """Groups that own devices which the ranks need."""
    reach: tuple[str, ...] = ()
    """Folders that the user must be able to reach, even if a parent folder is closed to it."""
    private: tuple[str, ...] = ()
    """Folders that ranks with the agent's own user must not read (Landlock); empty without Landlock."""
    own: tuple[str, ...] = ()
    """Folders that belong to the run, anywhere on the host."""
    written: tuple[str, ...] = ()
    """Folders in which these ranks may write to existing files, but not create or remove any."""
    code: tuple[str, ...] = ()
    """Folders that these ranks may read and execute, but not change."""
    group: str | None = None
    """Control group of the run; each rank gets a subgroup."""
    max_processes: int | None = None
    """Maximum processes and threads of the user. It requires a `uid`, because the kernel counts by user."""
    umask: int = PRIVATE_UMASK
    """Mask of the permissions of files that the ranks create."""
    filtered: bool = False
    """Deny the ranks system calls that training does not need (`system_calls`)."""


def known_fields(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed JSON fields that this version of a dataclass has, with tuples in place of lists.

    A newer version of the sender may add fields.
    """
    known = {name: fields[name] for name in kind.__dataclass_fields__ if name in fields}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def enter(confinement: Confinement) -> None:
    """Drop all rights that the confinement does not grant. This is final for the process and its descendants.

    Raises:
        OSError: the kernel refuses a part of it; no code of the job may run then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(confinement.umask)
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
    if confinement.filtered:  # last: the steps above may need what it denies
        system_calls.restrict()


def enter_folder(folder: int, uid: int | None) -> None:
    """Drop all access except to one open folder, for a process that handles untrusted input.

    The process becomes the user `uid`, or drops its capabilities without one. If the kernel has Landlock, the
    process can then open nothing outside the folder for reading or writing, so import modules beforehand.
    The process must not need to start other processes.

    Raises:
        OSError: the kernel refuses a part of it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(PRIVATE_UMASK)
    if uid is not None:
        _become(Confinement(uid=uid, max_processes=0), uid)
    else:
        processes.drop_capabilities()
    processes.forbid_new_privileges()
    if landlock.version():
        landlock.restrict_to(folder)


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
    # A change of user resets both: the rank must still die with its launcher, and read its own files in
    # /proc.
    processes.die_with_parent()
    processes.set_dumpable(yes=True)


def _paths(names: Sequence[str]) -> list[Path]:
    return [Path(name) for name in names]
