"""Secrets of the runs on this node: fetched at launch, kept in memory, and hidden in the ranks' output."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from worker_agent.host.folders import LoggedRun
from worker_agent.link.redaction import HideAll, Redactor
from worker_agent.link.service_api import Backoff, NotJoined, Refused, Unreachable

_log = structlog.get_logger()

Ask = Callable[[str, int], Mapping[str, str]]
"""Function that returns the secret variables of a generation of a job. Raises Unreachable, NotJoined, Refused."""
_TOKENS_ONLY = Redactor()


def _nobody(_job_id: str, _generation: int) -> Mapping[str, str]:
    return {}


class RunSecrets:
    """Secrets by the name of the run. Thread-safe."""

    def __init__(self, ask: Ask = _nobody) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._env: dict[str, Mapping[str, str]] = {}
        self._redactors: dict[str, Redactor] = {}

    def fetch(self, run: str, job_id: str, generation: int) -> None:
        """Fetch the secrets of a run, unless they are known.

        Raises:
            Unreachable, NotJoined, Refused: see `ServiceApi.secrets`.
        """
        if run not in self._env:
            env = self._ask(job_id, generation)
            with self._lock:
                self._env[run] = env
                self._redactors[run] = Redactor(tuple(env.values()))

    def recall(self, run: LoggedRun, known: Callable[[], None]) -> None:
        """Fetch the secrets of ranks that an earlier agent started, and call `known`.

        This happens in a separate thread, with retries.
        """
        name = run.folder.name

        def ask() -> None:
            backoff = Backoff(random.Random())
            while True:
                try:
                    self.fetch_again(name, run.folder.job_id, run.folder.generation)
                except (Unreachable, NotJoined) as error:
                    time.sleep(backoff.next_s(getattr(error, "retry_after_s", 0.0)))
                else:
                    known()
                    return

        if run.has_secrets:
            threading.Thread(target=ask, daemon=True, name=f"secrets of {name}").start()

    def fetch_again(self, run: str, job_id: str, generation: int) -> None:
        """Fetch the secrets of ranks that an earlier agent started. If the service refuses, hide all their output.

        Raises:
            Unreachable, NotJoined: see `ServiceApi.secrets`.
        """
        try:
            self.fetch(run, job_id, generation)
        except Refused as error:
            _log.warning(
                "all output of a run is hidden, because its secrets are unknown", run=run, error=str(error)
            )
            with self._lock:
                self._redactors[run] = HideAll()

    def env(self, run: str) -> Mapping[str, str]:
        """Return the secret variables of a run; empty if none were fetched."""
        return self._env.get(run, {})

    def redactor(self, run: str, *, has_secrets: bool) -> Redactor | None:
        """Return the redactor for the output of a run, or None while its secrets are unknown."""
        return self._redactors.get(run) if has_secrets else _TOKENS_ONLY

    def forget(self, run: str) -> None:
        """Drop the secrets of a run that is over and whose output is shipped."""
        with self._lock:
            self._env.pop(run, None)
            self._redactors.pop(run, None)


def in_memory(env: Mapping[str, str]) -> int:
    """Return the descriptor of an anonymous memory file that holds the variables as JSON.

    The file has no name, and is passed from process to process.
    """
    descriptor = os.memfd_create("secrets", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(dict(env)).encode())
    return descriptor
