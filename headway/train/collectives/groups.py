"""Groups of torch with two time limits: a short one for connecting, and one for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from headway.train.collectives.backend import Rendezvous

CONNECT_TIMEOUT = timedelta(seconds=4)
"""Timeout of connections between members, which take milliseconds: gloo may wait that long for a dead member."""
_WITH_TIMEOUTS = {"gloo", "nccl"}
"""Backends whose timeout torch can change after a group is formed."""

_made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Number of groups that the library has made beside each default group."""


def default_group(backend: str, at: Rendezvous) -> None:
    """Form torch's default group over gloo or NCCL."""
    dist.init_process_group(
        backend, store=at.store, rank=at.rank, world_size=at.world_size, timeout=at.connect
    )
    if at.timeout != at.connect:
        _set_timeout(None, at.timeout)


def gloo_group(ranks: Sequence[int] | None, timeout: timedelta | None) -> Any:
    """Form a gloo group of these ranks (None: all), whose collectives time out after `timeout` (None: torch's default)."""
    return subgroup(ranks, timeout, "gloo")


def subgroup(ranks: Sequence[int] | None, timeout: timedelta | None, backend: str | None = None) -> Any:
    """Form a group of these ranks (None: all) over a backend (None: that of the default group). Every rank calls it.

    Its collectives time out after `timeout` (None: torch's default).
    """
    among = None if ranks is None else list(ranks)
    count_group()
    if timeout is None:
        return dist.new_group(among, backend=backend)
    if backend is None and dist.get_backend() not in _WITH_TIMEOUTS:
        return dist.new_group(among, timeout=timeout)
    group = dist.new_group(among, backend=backend, timeout=min(timeout, CONNECT_TIMEOUT))
    if among is None or dist.get_rank() in among:
        _set_timeout(group, timeout)
    return group


def count_group() -> None:
    """Note that the library makes a group of the present default group; each rank does, also one outside of it."""
    world: Any = dist.group.WORLD
    _made[world] = _made.get(world, 0) + 1


def groups_of_script() -> int:
    """Return the number of groups that the script has made beside the present default group, also without this rank."""
    world: Any = dist.group.WORLD
    if world is None:
        return 0
    every = dist.distributed_c10d._world.group_count  # noqa: SLF001  # torch counts them on every rank
    return int(every) - 1 - _made.get(world, 0)


def abort_groups(backend: str) -> None:
    """Abort the default group over a backend of a device and all others of the process.

    Those of the backend are aborted at once, each by a thread: the abort of one waits for the device, and so for operations of
    the others, which would never end if their turn came later.

    Raises:
        RuntimeError: the abort of a group did not end within the group's time limit.
    """
    world = dist.distributed_c10d._world  # noqa: SLF001  # torch has no list of the groups
    groups = [one for one, (name, _) in list(world.pg_map.items()) if name == backend]
    try:
        if len(groups) > 1:
            with ThreadPoolExecutor(len(groups)) as together:
                list(together.map(lambda one: one.abort(), groups))
    finally:
        forget_groups()


def forget_groups() -> None:
    """Abort all groups of the process, of which none has an operation in progress, one after another."""
    dist.distributed_c10d._abort_process_group()  # noqa: SLF001  # torch's own restarts use it


def _set_timeout(group: Any, timeout: timedelta) -> None:
    dist.distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  # torch has no other way
