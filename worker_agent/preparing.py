"""What a run needs before it can start: its working folder, and the order to the launcher."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from headway.contract.agents import RunCommand, SlotInfo
from worker_agent.bundles import BadBundle, BundleCache
from worker_agent.commandline import start_method
from worker_agent.engines import Found, container_of
from worker_agent.environment import rank_env, threads_per_rank, visible_devices
from worker_agent.folders import RunFolder, write_json
from worker_agent.isolation import Isolation, give
from worker_agent.launcher.protocol import LaunchPlan
from worker_agent.secrets import RunSecrets
from worker_agent.service_api import Backoff, NotJoined, Refused, Unreachable
from worker_agent.storage_keys import StorageKeys

_log = structlog.get_logger()

PATIENCE_S = 60.0
"""How long a download is tried again before the run is given back."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the agent knows about the machine it runs on. `base_env` is what every rank gets of it."""

    slots: Sequence[SlotInfo]
    cpus: int
    base_env: Mapping[str, str]
    isolation: Isolation
    engine: Found


@dataclass(frozen=True, slots=True)
class CannotPrepare:
    """Why a run cannot start here, for people."""

    message: str
    retryable: bool


class Preparer:
    """Makes working folders. Safe to use from several threads."""

    def __init__(
        self,
        bundles: BundleCache,
        isolation: Isolation,
        engine: Found,
        secrets: RunSecrets,
        storage: StorageKeys,
        stopping: threading.Event,
    ) -> None:
        self._bundles = bundles
        self._storage = storage
        self._secrets = secrets
        self._isolation = isolation
        self._engine = engine
        self._stopping = stopping

    def prepare(self, command: RunCommand, folder: RunFolder) -> CannotPrepare | None:
        """Make the working folder of the run, fetch its secrets and keys for its checkpoints; None when all is there."""
        if command.image is not None and self._engine.engine is None:
            return CannotPrepare(
                f"The job runs in the image {command.image}, and this node cannot start containers: "
                f"{self._engine.problem}. Start Docker or Podman there, and its agent again.",
                retryable=True,
            )
        backoff = Backoff(random.Random())
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                what = "bundle"
                self._bundles.unpack(command.bundle, folder.work)
                give(folder.work, self._isolation.user_of(command.job_id))
                self._isolation.prepare(command, folder)
                if command.secrets:
                    what = "job's secrets"
                    self._secrets.fetch(folder.name, command.job_id, command.generation)
                if not command.checkpoint_uri.startswith("file:"):
                    what = "keys for checkpoints"
                    self._storage.provide(command.job_id, command.generation, folder)
            except (Unreachable, NotJoined) as error:
                if time.monotonic() > give_up_s or self._stopping.wait(backoff.next_s()):
                    return CannotPrepare(f"The {what} could not be fetched. {error}", retryable=True)
            except (BadBundle, Refused) as error:
                return CannotPrepare(f"The {what} could not be used. {error}", retryable=False)
            except OSError as error:
                return CannotPrepare(f"The folders of the run could not be made: {error}", retryable=True)
            else:
                return None


def launch_plan(command: RunCommand, folder: RunFolder, host: Host, *, hosts_stores: bool) -> LaunchPlan:
    """The launcher's order. `hosts_stores`: whether it can keep the job's store.

    Raises:
        OSError: the command names a slot that this host does not have, or a folder of the run's ranks is missing and cannot be
            made.
    """
    host.isolation.make_control(command, folder)
    method = start_method(command.run, command.env)
    slots = {slot.index: slot for slot in host.slots}
    missing = [rank.slot for rank in command.ranks if rank.slot not in slots]
    if missing:
        raise OSError(f"This node has no slot {missing[0]}.")
    devices = visible_devices(command, slots)
    threads = threads_per_rank(
        command.env, cpus=host.cpus, slots=host.slots, cpus_per_slot=command.cpus_per_slot
    )
    base = {**host.isolation.environment(folder), **host.base_env}
    return LaunchPlan(
        argv=list(method.argv),
        how=method.how,
        cwd=str(folder.work),
        threads=threads,
        store_host=command.master_addr if command.hosts_store and hosts_stores else None,
        store_port=command.store_port or command.master_port,
        node_count=command.node_count,
        live=command.live,
        ranks={
            rank.rank: rank_env(
                command,
                rank,
                base=base,
                control=folder.control,
                devices=devices,
                threads=threads,
                agent_keeps_store=hosts_stores,
            )
            for rank in command.ranks
        },
        confinement=host.isolation.confinement(command, folder),
        container=container_of(command, folder, host.engine, host.isolation),
    )


def write_plan(plan: LaunchPlan, folder: RunFolder, *, to_older_launcher: bool) -> None:
    """Leave the order where the launcher finds it. One of an earlier version looks for the environments in the plan."""
    if not to_older_launcher:
        for rank, env in plan.ranks.items():
            write_json(folder.env(rank), env)
        plan = plan.without_environments()
    write_json(folder.launch, plan.to_json())
