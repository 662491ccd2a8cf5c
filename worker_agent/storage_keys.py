"""Keys for the checkpoints of the runs on this node, or tickets to have requests signed: asked for at launch, renewed while a run
goes on, left in its control folder. They reach the objects of that job and no others, and for an hour at most.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from headway._tls import ca_file_of
from headway.contract.credentials import StorageAccess
from headway.contract.runtime import STORAGE_FILE
from headway.errors import HeadwayError
from worker_agent.folders import RunFolder, StateFolder, read_json, write_text
from worker_agent.service_api import Refused

_log = structlog.get_logger()

Ask = Callable[[str, int], StorageAccess]
"""For a generation of a job. Raises Unreachable, NotJoined, Refused."""
LOOK_EVERY_S = 30.0
_RENEWED_AFTER = 1 / 3
"""Of the time that keys are valid: so a service may be away for the other two thirds."""
_READABLE_MODE = 0o640
"""Ranks with a user of their own read it by their group."""


@dataclass(frozen=True, slots=True)
class SigningPlace:
    """Where ranks have requests signed: the service's URL, and certificates (PEM) that it and the store may have."""

    service_url: str
    ca_pem: str = ""


def signing_place(service_url: str, env: Mapping[str, str]) -> SigningPlace:
    """The place as this agent reaches it. The file of certificates was read before, so that it can be (`trusted_by`)."""
    ca_file = ca_file_of(env)
    return SigningPlace(service_url, Path(ca_file).read_text() if ca_file else "")


class StorageKeys:
    """What is known of keys is in the folders of runs, so that a restarted agent goes on with it."""

    def __init__(
        self, ask: Ask, signing: SigningPlace, state: StateFolder, stopping: threading.Event
    ) -> None:
        self._ask = ask
        self._signing = signing
        self._state = state
        self._stopping = stopping

    def provide(self, job_id: str, generation: int, folder: RunFolder) -> None:
        """Leave keys for the ranks of a run, where the service gives any: else they use what their host has.

        Raises:
            Unreachable, NotJoined: ask again.
            Refused: the run is not this node's (any more).
            OSError: they cannot be written.
        """
        access = self._ask(job_id, generation)
        keys = access.ticket or access.credentials
        if keys is None:
            return
        place = {} if access.ticket is None else asdict(self._signing)
        now_s = time.time()
        renew_at_s = now_s + (keys.expires_at.timestamp() - now_s) * _RENEWED_AFTER
        folder.control.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps({**keys.model_dump(mode="json"), **place, "renew_at_s": renew_at_s})
        write_text(folder.control / STORAGE_FILE, text, _READABLE_MODE)

    def run(self) -> None:
        """Renew what is due until told to stop."""
        while not self._stopping.wait(LOOK_EVERY_S):
            self.renew_due(time.time())

    def renew_due(self, now_s: float) -> None:
        """Renew the keys of runs that go on. A run that is not this node's any more loses its keys."""
        for job in self._state.jobs():
            for folder in job.runs():
                if folder.gone.exists() or folder.ended.exists() or not _is_due(folder, now_s):
                    continue
                try:
                    self.provide(job.path.name, int(folder.path.name), folder)
                except Refused as error:
                    _log.info("keys for checkpoints are taken back", run=folder.name, why=str(error))
                    (folder.control / STORAGE_FILE).unlink(missing_ok=True)
                except (HeadwayError, OSError) as error:
                    _log.warning(
                        "keys for checkpoints are not renewed yet", run=folder.name, error=str(error)
                    )


def _is_due(folder: RunFolder, now_s: float) -> bool:
    kept: dict[str, Any] | None = read_json(folder.control / STORAGE_FILE)
    return kept is not None and now_s >= float(kept["renew_at_s"])
