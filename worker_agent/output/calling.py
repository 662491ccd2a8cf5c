"""Start the child process that fetches or saves an output folder, and read its reply."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headway.contract.agents import RunCommand
from headway.contract.runtime import STORAGE_FILE
from headway.contract.spec_after import files_prefix
from worker_agent.host.folders import RunFolder
from worker_agent.isolation.modes import Isolation
from worker_agent.link.secrets import RunSecrets
from worker_agent.output.child import ChildOrder, ChildReply
from worker_agent.output.places import after_inner, root_and_inner
from worker_agent.output.values import Request

LIMIT_S: Final = 3600.0
"""Time limit of a child in seconds. A child that exceeds it is killed, and the next one repeats its work."""
_STORE_PREFIXES: Final = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_")
"""Prefixes of the settings of an object store's client.

Nothing else of the job's environment reaches the child, because the child is not the job's program.
"""
_SHOWN_CHARACTERS: Final = 300


class Caller:
    """Starter of child processes. Thread-safe."""

    def __init__(self, isolation: Isolation, env: Mapping[str, str], secrets: RunSecrets) -> None:
        self._isolation = isolation
        self._env = env
        self._secrets = secrets

    def call(
        self, command: RunCommand, folder: RunFolder, request: Request, *, predecessor: str | None = None
    ) -> ChildReply:
        """Run a child with the rights of the run's ranks that fetches or saves the folder, or copies that of a predecessor.

        Raises:
            OSError: the child cannot be started, fails, or exceeds the time limit.
        """
        root, inner = root_and_inner(command, folder)
        if predecessor is not None:
            root, inner = folder.job.home, after_inner(predecessor)
        keys = folder.control / STORAGE_FILE
        order = ChildOrder(
            request=request,
            root=str(root),
            inner=inner,
            uri=command.checkpoint_uri,
            below="" if predecessor is None else files_prefix(predecessor),
            keys=keys.read_text(encoding="utf-8") if keys.exists() else None,
            env=self._store_env(command, folder),
            confinement=self._isolation.confinement(command, folder),
        )
        try:
            done = subprocess.run(
                [sys.executable, "-m", "worker_agent.output.child"],
                cwd=Path(__file__).parents[2],  # folder from which this package was imported
                env=dict(self._env),
                input=order.model_dump_json().encode(),
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"The output folder was not moved within {LIMIT_S / 60:.0f} minutes.") from None
        try:
            return ChildReply.model_validate_json(done.stdout)
        except ValidationError:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            why = last[0][:_SHOWN_CHARACTERS] if last else f"it exited with code {done.returncode}"
            raise OSError(f"The process that moves the output folder failed: {why}") from None

    def _store_env(self, command: RunCommand, folder: RunFolder) -> dict[str, str]:
        given = {**self._env, **command.env, **self._secrets.env(folder.name)}
        return {name: value for name, value in given.items() if name.startswith(_STORE_PREFIXES)}
