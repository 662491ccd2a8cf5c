"""Access of the runs on this node to their checkpoints: storage keys, or tickets to have requests signed.

The agent fetches them at launch, renews them while a run continues, and stores them in the run's control
folder. They give access to the objects of that job only, for an hour at most.
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

from headway.contract.credentials import StorageAccess
from headway.contract.runtime import STORAGE_FILE
from headway.errors import HeadwayError
from headway.tls import ca_file_of
from worker_agent.host.folders import RunFolder, StateFolder, read_json, write_text
from worker_agent.link.service_api import Refused

_log = structlog.get_logger()

Ask = Callable[[str, int], StorageAccess]
"""Function that returns the access for a generation of a job. Raises Unreachable, NotJoined, Refused."""
LOOK_EVERY_S = 30.0
_RENEWED_AFTER = 1 / 3
"""Part of the keys' validity after which they are renewed. The service may be down for the rest of it."""
_READABLE_MODE = 0o640
"""Mode of the key file. Ranks with their own user read it through their group."""


@dataclass(frozen=True, slots=True)
class SigningPlace:
    """Place where ranks have requests signed: the service's URL, and the CA certificates (PEM) to trust."""

    service_url: str
    ca_pem: str = ""


def signing_place(service_url: str, env: Mapping[str, str]) -> SigningPlace:
    """Return the place as this agent reaches it. The CA file is known to be readable (`trusted_by`)."""
    ca_file = ca_file_of(env)
    return SigningPlace(service_url, Path(ca_file).read_text(encoding="utf-8") if ca_file else "")


class StorageKeys:
    """Storage keys of all runs, kept in the folders of runs, so that a restarted agent finds them."""

    def __init__(
        self, ask: Ask, signing: SigningPlace, state: StateFolder, stopping: threading.Event
    ) -> None:
        self._ask = ask
        self._signing = signing
        self._state = state
        self._stopping = stopping

    def provide(self, job_id: str, generation: int, folder: RunFolder) -> None:
        """Store keys for the ranks of a run. If the service issues none, the ranks use the credentials of their host.

        Raises:
            Unreachable, NotJoined: the caller should retry.
            Refused: the run does not belong to this node, or no longer does.
            OSError: the keys cannot be written.
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
        """Renew the keys that are due until the agent stops."""
        while not self._stopping.wait(LOOK_EVERY_S):
            self.renew_due(time.time())

    def renew_due(self, now_s: float) -> None:
        """Renew the keys of runs that continue, and delete those of runs that no longer belong to this node."""
        for job in self._state.jobs():
            for folder in job.runs():
                if folder.gone.exists() or folder.ended.exists() or not _is_due(folder, now_s):
                    continue
                try:
                    self.provide(folder.job_id, folder.generation, folder)
                except Refused as error:
                    _log.info(
                        "storage keys deleted: the run no longer belongs to this node",
                        run=folder.name,
                        why=str(error),
                    )
                    (folder.control / STORAGE_FILE).unlink(missing_ok=True)
                except (HeadwayError, OSError) as error:
                    _log.warning("storage keys not renewed; trying again", run=folder.name, error=str(error))


def _is_due(folder: RunFolder, now_s: float) -> bool:
    kept: dict[str, Any] | None = read_json(folder.control / STORAGE_FILE)
    return kept is not None and now_s >= float(kept["renew_at_s"])
