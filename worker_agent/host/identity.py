"""Identity of this agent: the lock on its folder, its instance id and its ports."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import socket
from dataclasses import dataclass

from headway.errors import HeadwayError
from worker_agent.host import ports as port_blocks
from worker_agent.host.folders import StateFolder, read_json, write_json
from worker_agent.host.ports import Ports


@dataclass(slots=True)
class Identity:
    """Identity of the agent, kept over restarts. `lock` holds the folder and `claim` holds the ports."""

    instance: str
    ports: Ports
    lock: int
    claim: socket.socket | None

    def release(self) -> None:
        """Release the folder and the ports for another agent. The end of the process does the same."""
        os.close(self.lock)
        if self.claim is not None:
            self.claim.close()


def lock(state: StateFolder) -> int:
    """Lock the folder for this process, and return the descriptor of the lock.

    Raises:
        HeadwayError: another agent holds the lock.
    """
    descriptor = os.open(state.agent_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise HeadwayError(
            f"Another agent uses the folder {state.path}.",
            "Stop it first, or give this one a folder of its own with --state-dir.",
        ) from None
    return descriptor


def identify(state: StateFolder, name: str, ports: Ports | None) -> Identity:
    """Lock the folder, and load the identity in it or create one. `ports` overrides the stored block of ports.

    Raises:
        HeadwayError: the folder is in use, ranks of an agent of another name run from it, or no ports are free.
    """
    held = lock(state)
    saved = read_json(state.identity) or {}
    try:
        _check_name(state, saved.get("name", name), name)
    except HeadwayError:
        os.close(held)
        raise
    instance = saved.get("instance") or secrets.token_hex(16)
    claim = None
    if ports is None and "ports" in saved:
        ports = Ports(*saved["ports"])
        claim = port_blocks.claim(ports)
        ports = ports if claim is not None else None
    if ports is None:
        ports, claim = port_blocks.choose(random.Random())
    write_json(state.identity, {"instance": instance, "ports": [ports.first, ports.last], "name": name})
    return Identity(instance, ports, held, claim)


def _check_name(state: StateFolder, before: str, name: str) -> None:
    """Refuse another name while ranks run, because the service would take them for those of a node that is gone."""
    if before == name:
        return
    running = [
        one for job in state.jobs() for one in job.runs() if one.started.exists() and not one.gone.exists()
    ]
    if running:
        raise HeadwayError(
            f"The folder {state.path} belongs to the agent {before}, and ranks of {len(running)} of its runs may still run.",
            f"Start it as {before} again, or give {name} a folder of its own with --state-dir. To rename the agent, let it "
            f"finish first: headway drain {before}.",
        )
