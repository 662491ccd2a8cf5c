"""The secrets of the runs on this node: asked for at launch, kept in memory, handed to the ranks and hidden in what they say."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from worker_agent.redaction import HideAll, Redactor
from worker_agent.service_api import Backoff, NotJoined, Refused, Unreachable

if TYPE_CHECKING:
    from worker_agent.logs import LoggedRun  # whose shipper hides what is kept here

_log = structlog.get_logger()

Ask = Callable[[str, int], Mapping[str, str]]
"""The environment of a generation of a job. Raises Unreachable, NotJoined, Refused."""
_TOKENS_ONLY = Redactor()


def _nobody(_job_id: str, _generation: int) -> Mapping[str, str]:
    return {}


class RunSecrets:
    """By the name of the run. Safe to share between threads."""

    def __init__(self, ask: Ask = _nobody) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._env: dict[str, Mapping[str, str]] = {}
        self._redactors: dict[str, Redactor] = {}

    def fetch(self, run: str, job_id: str, generation: int) -> None:
        """Ask for the secrets of a run, unless they are known.

        Raises:
            Unreachable, NotJoined, Refused: see there.
        """
        if run not in self._env:
            env = self._ask(job_id, generation)
            with self._lock:
                self._env[run] = env
                self._redactors[run] = Redactor(tuple(env.values()))

    def recall(self, run: LoggedRun, known: Callable[[], None]) -> None:
        """Ask in a thread of its own, until there is an answer, for ranks that an earlier agent has started."""
        name = run.folder.name

        def ask() -> None:
            backoff = Backoff(random.Random())
            while True:
                try:
                    self.fetch_again(name, run.job_id, run.generation)
                except (Unreachable, NotJoined) as error:
                    time.sleep(backoff.next_s(getattr(error, "retry_after_s", 0.0)))
                else:
                    known()
                    return

        if run.has_secrets:
            threading.Thread(target=ask, daemon=True, name=f"secrets of {name}").start()

    def fetch_again(self, run: str, job_id: str, generation: int) -> None:
        """What ranks were given that an earlier agent has started; if the service does not say, all their output is hidden.

        Raises:
            Unreachable, NotJoined: see there.
        """
        try:
            self.fetch(run, job_id, generation)
        except Refused as error:
            _log.warning(
                "the output of a run is hidden: its secrets are not known", run=run, error=str(error)
            )
            with self._lock:
                self._redactors[run] = HideAll()

    def env(self, run: str) -> Mapping[str, str]:
        """What the ranks of a run are given; empty where nothing was asked for."""
        return self._env.get(run, {})

    def redactor(self, run: str, *, has_secrets: bool) -> Redactor | None:
        """What hides the secrets of a run; None as long as they are not known."""
        return self._redactors.get(run) if has_secrets else _TOKENS_ONLY

    def forget(self, run: str) -> None:
        """The run is over, and all that it said is shipped."""
        with self._lock:
            self._env.pop(run, None)
            self._redactors.pop(run, None)


def in_memory(env: Mapping[str, str]) -> int:
    """A descriptor of memory that holds the environment. It is handed from process to process, and has no name."""
    descriptor = os.memfd_create("secrets", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(dict(env)).encode())
    return descriptor
