"""Checks of `headway doctor` about this machine."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

from headway.client.target import CLIENT_FILE, home
from headway.contract.views.diagnosis import Check, Level
from headway.errors import HeadwayError
from headway.local import postgres, redis

_LITTLE_DISK_BYTES = 5 * 2**30
_NO_DISK_BYTES = 200 * 2**20
_FEW_FILES = 10_000
"""Free inodes below which the check warns. A job takes a few dozen, and one for each file of its bundle."""
_FEW_OPEN_FILES = 4096
"""Open files below which the check warns. The service has a socket for each agent and each follower of a job."""
_CONNECT_S = 3.0
_CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
_BOUNDS = {"memory": "memory_per_slot", "cpu": "cpus_per_slot", "pids": "the number of processes"}
_SECRETS = (CLIENT_FILE, "admin-token", "join-token", "secrets-key")


def machine_checks(env: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of everything that `headway up` and a job need on this machine."""
    yield Check(name="python", level=Level.OK, found=sys.version.split()[0])
    yield _torch()
    if env.get("HEADWAY_DATABASE_URL"):
        yield Check(name="postgres", level=Level.OK, found="HEADWAY_DATABASE_URL is set.")
    else:
        yield _binary("postgres", lambda: str(postgres.find_binaries()))
    if env.get("HEADWAY_REDIS_URL"):
        yield Check(name="redis", level=Level.OK, found="HEADWAY_REDIS_URL is set.")
    else:
        yield _binary("redis", redis.find_binary)
    yield disk_check(home(env))
    yield files_check(home(env))
    yield open_files_check(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield secrets_check(home(env))
    yield bounds_check(_CONTROLLERS)


def disk_check(folder: Path) -> Check:
    """Check the free space for checkpoints on the disk that holds `folder`, or would hold it."""
    free = shutil.disk_usage(_existing(folder)).free
    level = Level.FAIL if free < _NO_DISK_BYTES else Level.WARN if free < _LITTLE_DISK_BYTES else Level.OK
    return Check(
        name="disk",
        level=level,
        found=f"{free / 2**30:.1f} GiB free for {folder}.",
        why="Databases, logs and checkpoints are written there; when it is full, jobs fail.",
        hint="Make room, or set HEADWAY_HOME to another disk.",
    )


def files_check(folder: Path) -> Check:
    """Check the free inodes of the disk that holds `folder`. File systems without a limit report 0 of 0."""
    disk = os.statvfs(_existing(folder))
    few = disk.f_files > 0 and disk.f_favail < _FEW_FILES
    return Check(
        name="files",
        level=Level.WARN if few else Level.OK,
        found=f"{disk.f_favail:,} more files can be made for {folder}."
        if disk.f_files
        else f"No limit on files for {folder}.",
        why="A disk without inodes is full, however much room it has.",
        hint="Delete many small files: du --inodes -s * | sort -n",
    )


def open_files_check(limit: int) -> Check:
    """Check the limit on the files and sockets that one process may hold open."""
    enough = limit == resource.RLIM_INFINITY or limit >= _FEW_OPEN_FILES
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    return Check(
        name="open files",
        level=Level.OK if enough else Level.WARN,
        found=f"A process may have {shown} open.",
        why="Every agent, follower and rank needs open files; beyond the limit, connections are refused.",
        hint="ulimit -n 65536; in a systemd unit: LimitNOFILE=65536",
    )


def secrets_check(folder: Path) -> Check:
    """Check that only this user can read the files that hold tokens."""
    files = [file for name in _SECRETS if (file := folder / name).is_file()]
    read_by_others = [str(file) for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if not read_by_others:
        return Check(
            name="secrets", level=Level.OK, found=f"Only this user can read the {len(files)} token files."
        )
    return Check(
        name="secrets",
        level=Level.FAIL,
        found=f"Others may read {', '.join(read_by_others)}.",
        why="Anyone who has a token may run commands on every host.",
        hint=f"chmod 600 {' '.join(read_by_others)}",
    )


def bounds_check(controllers: Path) -> Check:
    """Check which bounds of jobs the kernel can enforce for an agent on this machine.

    `controllers` is the list of available controllers of control groups (version 2).
    """
    available = set(controllers.read_text(encoding="utf-8").split()) if controllers.is_file() else set()
    missing = [resource for name, resource in _BOUNDS.items() if name not in available]
    return Check(
        name="bounds of jobs",
        level=Level.WARN if missing else Level.OK,
        found=(
            f"The kernel cannot enforce {', '.join(missing)}."
            if missing
            else f"The kernel can enforce {', '.join(_BOUNDS.values())}, where an agent may write its control groups."
        ),
        why="A job that takes more than its file says can starve others on the same host.",
        hint="Start with control groups of version 2 (systemd.unified_cgroup_hierarchy=1), and give an agent its own part "
        "(Delegate=yes). Its log says which limits apply (`jobs are kept apart`). Without an agent here, this does not matter.",
    )


def redis_check(place: str) -> Check:
    """Check that an agent on this machine could reach the Redis of its commands at `host:port`."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        return Check(
            name="agent redis",
            level=Level.WARN,
            found=f"Redis does not answer at {place} from here ({error}).",
            why="An agent on this machine could join, but would receive no commands.",
            hint="Open the port, or set HEADWAY_AGENT_REDIS_URL of the service to the address that hosts reach. Without "
            "an agent here, this does not matter.",
        )
    return Check(name="agent redis", level=Level.OK, found=f"{place} answers.")


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _torch() -> Check:
    try:
        return Check(name="torch", level=Level.OK, found=installed_version("torch"))
    except PackageNotFoundError:
        hint = "Jobs that run here need it: pip install 'headway[train]'."
        return Check(name="torch", level=Level.WARN, found="Not installed.", hint=hint)


def _binary(name: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name=name, level=Level.OK, found=find())
    except HeadwayError as error:
        return Check(
            name=name, level=Level.WARN, found=error.what, hint=f"{error.hint} `headway up` needs it."
        )
