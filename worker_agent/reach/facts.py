"""Facts about this host that decide whether it can train together with others."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from headway.contract.links import HostFacts
from worker_agent.host.network import interface_of

_SHM = Path("/dev/shm")  # noqa: S108  # read only for its size
_DRIVER = Path("/sys/module/nvidia/version")
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def host_facts(
    address: str, probe_port: int | None, probe_key: str, kill_wait_s: float | None = None
) -> HostFacts:
    """Return the facts. `address` is the one that the node advertises, `kill_wait_s` that of a pilot or pod."""
    interface = interface_of(address) or ""
    stats = psutil.net_if_stats().get(interface)
    with contextlib.suppress(OSError):
        return HostFacts(
            probe_port=probe_port,
            probe_key=probe_key,
            interface=interface,
            mtu=stats.mtu if stats is not None else None,
            shm_bytes=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
            open_files=_limit(resource.RLIMIT_NOFILE),
            locked_memory_bytes=_limit(resource.RLIMIT_MEMLOCK),
            driver=_DRIVER.read_text(encoding="utf-8").strip() if _DRIVER.exists() else "",
            nccl=_nccl(),
            executes=True,
            executes_with_input=True,
            kill_wait_s=kill_wait_s,
        )
    return HostFacts(
        probe_port=probe_port,
        probe_key=probe_key,
        interface=interface,
        executes=True,
        executes_with_input=True,
        kill_wait_s=kill_wait_s,
    )


def _limit(kind: int) -> int | None:
    """Return the soft limit of the agent, which ranks inherit; None if there is none."""
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _nccl() -> str:
    for package in _NCCL_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    return os.environ.get("NCCL_VERSION", "")
