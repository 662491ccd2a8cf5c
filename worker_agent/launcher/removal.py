"""Removal of the containers of a run: killing an engine's client leaves its container running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from worker_agent.host.folders import boot_s
from worker_agent.launcher import containers, program
from worker_agent.launcher.containers import Container

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between a failed removal and the next attempt."""


class Removal:
    """Removal of the containers of one run."""

    def __init__(self, container: Container, ranks: Collection[int]) -> None:
        self._container = container
        self._remaining = set(ranks)
        self._retry_at_s = 0.0
        self._removing: frozenset[int] = frozenset()
        self.pid: int | None = None
        """Child process that currently removes containers; None if there is none."""

    def done(self, ranks: Collection[int] | None, fork: Callable[[Callable[[], None]], int]) -> bool:
        """Return True if the containers of these ranks are removed; None means all ranks of the run.

        If they are not, start a child process that removes them. `fork` starts a child with a body, and
        returns its pid.
        """
        left = self._remaining if ranks is None else self._remaining & set(ranks)
        if left and self.pid is None and boot_s() >= self._retry_at_s:
            self._removing = frozenset(left)
            self.pid = fork(self._remove)
        return not left

    def ended(self, code: int) -> None:
        """Record the exit code of the child process."""
        self.pid = None
        if code == 0:
            self._remaining -= self._removing
        else:
            _log.error("containers of %s could not be removed; trying again", self._container.name)
            self._retry_at_s = boot_s() + RETRY_S

    def _remove(self) -> None:
        program.flush_and_exit(0 if containers.remove(self._container, sorted(self._removing)) else 1)
