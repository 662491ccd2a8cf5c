"""Environments on disk by the digest of what determines them; the least recently used ones are removed first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Final

import structlog

from headway.contract.agents import RunCommand
from worker_agent.environments import layer
from worker_agent.environments.building import BuildCancelled, Builder, BuildFailed
from worker_agent.environments.inputs import BadRequirements, Inputs, read_inputs
from worker_agent.environments.settings import determining, uv_settings
from worker_agent.host.folders import RunFolder, StateFolder, read_json, write_json

__all__ = ["BadRequirements", "BuildCancelled", "BuildFailed", "EnvironmentCache"]
_log = structlog.get_logger()

CACHE_BYTES: Final = 20 << 30
_FORMAT: Final = 1
"""Version of the layout of an environment. A new one makes every environment be built again."""
_FACTS: Final = "headway.json"
_LOOK_S: Final = 0.2
"""Seconds between two looks at whether a run that waits for a build still wants it."""


class EnvironmentCache:
    """Environments of one node. Thread-safe.

    Args:
        state: the agent's folder.
        builder: builds one environment.
        site: settings of uv for all jobs of the node, as in the agent's own environment.
        limit_bytes: size above which environments that no run uses are removed.
    """

    def __init__(
        self, state: StateFolder, builder: Builder, site: Mapping[str, str], limit_bytes: int = CACHE_BYTES
    ) -> None:
        self._state = state
        self._builder = builder
        self._site = uv_settings(site)
        self._limit_bytes = limit_bytes
        self._choosing = threading.Lock()
        """Held while a run names the environment that it uses, and while unused ones are chosen for removal."""
        self._building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        state.environments.mkdir(mode=0o711, exist_ok=True)
        for half in state.environments.glob("*.partial"):  # of an agent that was killed
            shutil.rmtree(half, ignore_errors=True)

    def provide(
        self,
        command: RunCommand,
        folder: RunFolder,
        given: Mapping[str, str],
        cancelled: Callable[[], bool],
    ) -> None:
        """Make the environment of a run available, and note it in the run's folder. Do nothing for a job without one.

        `given` are the variables of the job, secrets included. `cancelled` tells that the run is no longer wanted.

        Raises:
            BadRequirements: the file of the packages cannot be used.
            BuildFailed: uv failed.
            BuildCancelled: the run is no longer wanted.
            OSError: the folders cannot be created.
        """
        inputs = read_inputs(command, folder.work)
        if inputs is None:
            return
        settings = {**self._site, **uv_settings(given)}
        packages = layer.installed()
        digest = _digest(inputs, settings, layer.names_of(packages))
        target = self._state.environments / digest
        with self._choosing:
            write_json(folder.environment, str(target))
        lock = self._building[digest]
        while not lock.acquire(timeout=_LOOK_S):
            if cancelled():
                raise BuildCancelled
        try:
            if not (target / _FACTS).exists():
                self._build(target, inputs, settings, packages, folder, command, cancelled)
            os.utime(target / _FACTS)
        finally:
            lock.release()
        self.prune()

    def prune(self) -> None:
        """Remove environments that no run uses until the rest is within the limit, the least recently used first."""
        with self._choosing:
            used = self._used()
            kept = []
            for facts in self._state.environments.glob(f"*/{_FACTS}"):
                with contextlib.suppress(FileNotFoundError):
                    kept.append(
                        (facts.stat().st_mtime, facts.parent, int((read_json(facts) or {})["size_bytes"]))
                    )
            total = sum(size for _, _, size in kept)
            removed = []
            for _, path, size in sorted(kept):
                if total <= self._limit_bytes:
                    break
                if str(path) not in used:
                    half = path.with_name(f"{path.name}-{os.urandom(4).hex()}.partial")
                    path.rename(half)
                    removed.append(half)
                    total -= size
        for half in removed:
            _log.info("removed an environment", digest=half.name.partition("-")[0])
            shutil.rmtree(half, ignore_errors=True)

    def _used(self) -> set[str]:
        """Return the environments of the runs that have not ended."""
        runs = [run for job in self._state.jobs() for run in job.runs() if not run.ended.exists()]
        return {str(read_json(run.environment)) for run in runs if run.environment.exists()}

    def _build(
        self,
        target: Path,
        inputs: Inputs,
        settings: Mapping[str, str],
        packages: list[Distribution],
        folder: RunFolder,
        command: RunCommand,
        cancelled: Callable[[], bool],
    ) -> None:
        half = target.with_name(f"{target.name}-{os.urandom(4).hex()}.partial")
        log = folder.log(min(rank.rank for rank in command.ranks))
        begun_s = time.monotonic()
        try:
            built = self._builder.build(
                target.name, half, inputs, settings, layer.packages_of(packages), log, cancelled
            )
            took_s = time.monotonic() - begun_s
            facts = {"size_bytes": built.size_bytes, "took_s": round(took_s, 3), "host": built.host_packages}
            write_json(built.path / _FACTS, facts)
            built.path.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        _log.info("built an environment", run=folder.name, took_s=took_s, size_bytes=built.size_bytes)


def _digest(inputs: Inputs, settings: Mapping[str, str], host_packages: list[str]) -> str:
    """Return the digest of everything that determines an environment."""
    parts = {
        "format": _FORMAT,
        "main": inputs.main,
        "files": dict(inputs.files),
        "python": [sys.implementation.name, platform.python_version(), str(Path(sys.executable).resolve())],
        "platform": [sys.platform, platform.machine(), *platform.libc_ver()],
        "host": host_packages,
        "settings": determining(settings),
        "uv": version("uv"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
