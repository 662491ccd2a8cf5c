"""See to it that the containers of a run are gone: a client that was killed leaves them running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from worker_agent.folders import boot_s
from worker_agent.launcher import containers, program
from worker_agent.launcher.containers import Container

_log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""How long after a failure the engine is asked again."""


class Removal:
    """The containers of one run. `fork` starts a child with a body, and returns its pid."""

    def __init__(self, container: Container, ranks: Collection[int]) -> None:
        self._container = container
        self._left = set(ranks)
        self._again_s = 0.0
        self._asked: frozenset[int] = frozenset()
        self.pid: int | None = None
        """The child that removes some of them now."""

    def done(self, ranks: Collection[int] | None, fork: Callable[[Callable[[], None]], int]) -> bool:
        """Whether the containers of these ranks, of all with None, are gone. Where not, a child sees to it."""
        left = self._left if ranks is None else self._left & set(ranks)
        if left and self.pid is None and boot_s() >= self._again_s:
            self._asked = frozenset(left)
            self.pid = fork(self._remove)
        return not left

    def ended(self, code: int) -> None:
        """The child has ended with this code."""
        self.pid = None
        if code == 0:
            self._left -= self._asked
        else:
            _log.error("containers of %s could not be removed; trying again", self._container.name)
            self._again_s = boot_s() + AGAIN_S

    def _remove(self) -> None:
        program.flush_and_exit(0 if containers.remove(self._container, sorted(self._asked)) else 1)
