"""Groups of torch with two time limits: a short one for connecting, and one for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headway.train.collectives.backend import Rendezvous

CONNECT_TIMEOUT = timedelta(seconds=4)
"""Timeout of connections between members, which take milliseconds: gloo may wait that long for a dead member."""
_WITH_TIMEOUTS = {"gloo", "nccl"}
"""Backends whose timeout torch can change after a group is formed."""


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
    """Form a group of these ranks (None: all) over a backend (None: that of the default group).

    Its collectives time out after `timeout` (None: torch's default).
    """
    among = None if ranks is None else list(ranks)
    if timeout is None:
        return dist.new_group(among, backend=backend)
    if backend is None and dist.get_backend() not in _WITH_TIMEOUTS:
        return dist.new_group(among, timeout=timeout)
    group = dist.new_group(among, backend=backend, timeout=min(timeout, CONNECT_TIMEOUT))
    if among is None or dist.get_rank() in among:
        _set_timeout(group, timeout)
    return group


def _set_timeout(group: Any, timeout: timedelta) -> None:
    dist.distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  # torch has no other way
