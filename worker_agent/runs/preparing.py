"""Preparation of a run before its start: its working folder, and the order to the launcher."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from headway.contract.agents import RunCommand, SlotInfo
from headway.contract.runtime import ENV_OUTPUT_DIR, STORAGE_AWAY
from worker_agent.environments.cache import BadRequirements, BuildCancelled, BuildFailed, EnvironmentCache
from worker_agent.host.folders import RunFolder, write_json
from worker_agent.isolation.engines import DetectedEngine, container_of
from worker_agent.isolation.modes import Isolation, give
from worker_agent.launcher.commandline import start_method
from worker_agent.launcher.protocol import LaunchPlan
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Backoff, NotJoined, Refused, Unreachable
from worker_agent.link.storage_keys import StorageKeys
from worker_agent.output.folder_calls import OutputNotMoved
from worker_agent.output.handover import allow_writes
from worker_agent.output.keeper import Outputs
from worker_agent.output.places import (
    after_variables,
    inner_folders,
    lay_out,
    output_folder,
    start_argv,
    start_folder,
)
from worker_agent.runs.bundles import BadBundle, BundleCache
from worker_agent.runs.environment import environment_variables, rank_env, threads_per_rank, visible_devices

_log = structlog.get_logger()

PATIENCE_S = 60.0
"""Seconds for which a download is retried before the run is given back to the service."""
STORAGE_PATIENCE_S = 15.0
"""The same if object storage does not answer: the job waits in the queue instead, where it holds no slots."""


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the host of the agent. `base_env` is what every rank gets of the agent's environment."""

    slots: Sequence[SlotInfo]
    cpus: int
    base_env: Mapping[str, str]
    isolation: Isolation
    engine: DetectedEngine


@dataclass(frozen=True, slots=True)
class CannotPrepare:
    """Reason why a run cannot start here, as a message for users."""

    message: str
    retryable: bool


class Preparer:
    """Preparer of working folders. Thread-safe."""

    def __init__(
        self,
        bundles: BundleCache,
        isolation: Isolation,
        engine: DetectedEngine,
        secrets: RunSecrets,
        storage: StorageKeys,
        outputs: Outputs,
        environments: EnvironmentCache,
        stopping: threading.Event,
    ) -> None:
        self._environments = environments
        self._outputs = outputs
        self._bundles = bundles
        self._storage = storage
        self._secrets = secrets
        self._isolation = isolation
        self._engine = engine
        self._stopping = stopping

    def _unpack(self, command: RunCommand, folder: RunFolder) -> None:
        user = self._isolation.user_of(command.job_id)
        self._bundles.unpack(command.bundle, folder.work, user)
        lay_out(command, folder)
        for made in (folder.work, *inner_folders(command, folder)):
            give(made, user)

    def prepare(
        self, command: RunCommand, folder: RunFolder, cancelled: Callable[[], bool]
    ) -> CannotPrepare | None:
        """Create the working folder of the run, fetch its secrets, checkpoint keys and output folder, and build its
        environment.

        Return the reason if that is not possible. `cancelled` tells that the run is no longer wanted.
        """
        if self._isolation.broken:
            return CannotPrepare(
                f"This node takes no jobs: {self._isolation.broken}. Its operator finds details in the log of the agent.",
                retryable=True,
            )
        if command.image is not None and self._engine.engine is None:
            return CannotPrepare(
                f"The job runs in the image {command.image}, and this node cannot start containers: "
                f"{self._engine.problem}. Start Docker or Podman on it, and restart its agent.",
                retryable=True,
            )
        backoff = Backoff(random.Random())
        began_s = time.monotonic()
        while True:
            try:
                what = "bundle"
                self._unpack(command, folder)
                self._isolation.prepare(command, folder)
                if command.secrets:
                    what = "job's secrets"
                    self._secrets.fetch(folder.name, command.job_id, command.generation)
                if not command.checkpoint_uri.startswith("file:"):
                    what = "keys for checkpoints"
                    self._storage.provide(command.job_id, command.generation, folder)
                what = "output folder"
                self._outputs.fetch(command, folder)
                what = "files of the jobs in after"
                self._outputs.fetch_predecessors(command, folder)
            except (Unreachable, NotJoined, OutputNotMoved) as error:
                patience_s = STORAGE_PATIENCE_S if STORAGE_AWAY in str(error) else PATIENCE_S
                if time.monotonic() > began_s + patience_s or self._stopping.wait(backoff.next_s()):
                    return CannotPrepare(f"The {what} could not be fetched. {error}", retryable=True)
            except BadBundle as error:
                _log.warning("bundle not unpacked", run=folder.name, code=error.code, problem=error.what)
                return CannotPrepare(str(error), retryable=error.retryable)
            except Refused as error:
                return CannotPrepare(f"The {what} could not be used. {error}", retryable=False)
            except OSError as error:
                return CannotPrepare(f"The folders of the run could not be created: {error}", retryable=True)
            else:
                return self._provide_environment(command, folder, cancelled)

    def _provide_environment(
        self, command: RunCommand, folder: RunFolder, cancelled: Callable[[], bool]
    ) -> CannotPrepare | None:
        given = {**command.env, **self._secrets.env(folder.name)}
        try:
            self._environments.provide(command, folder, given, cancelled)
        except (BadRequirements, BuildFailed) as error:
            hide = self._secrets.redactor(folder.name, has_secrets=bool(command.secrets))
            text = str(error) if hide is None else hide.text(str(error))
            _log.warning("no environment", run=folder.name, problem=text)
            return CannotPrepare(text, retryable=isinstance(error, BuildFailed) and error.retryable)
        except BuildCancelled:
            return CannotPrepare("The run was stopped while its environment was built.", retryable=True)
        except OSError as error:
            return CannotPrepare(f"The environment could not be created: {error}", retryable=True)
        return None


def launch_plan(command: RunCommand, folder: RunFolder, host: Host, *, hosts_stores: bool) -> LaunchPlan:
    """Return the launcher's order. `hosts_stores` means that the launcher can keep the job's store.

    Raises:
        OSError: the command names a slot that this host does not have, or a folder of the ranks cannot be created.
    """
    host.isolation.make_control(command, folder)
    if command.live:
        allow_writes(folder, 0)  # ranks wait for later generations only where the file exists
    method = start_method(command.run, command.env)
    environment = folder.own_environment
    slots = {slot.index: slot for slot in host.slots}
    missing = [rank.slot for rank in command.ranks if rank.slot not in slots]
    if missing:
        raise OSError(f"This node has no slot {missing[0]}.")
    devices = visible_devices(command, slots)
    threads = threads_per_rank(
        command.env, cpus=host.cpus, slots=host.slots, cpus_per_slot=command.cpus_per_slot
    )
    base = {
        **host.isolation.environment(folder),
        **host.base_env,
        ENV_OUTPUT_DIR: str(output_folder(command, folder)),
        **after_variables(command, folder),
    }
    start = start_folder(command, folder)
    if environment is not None:
        base |= environment_variables(base, environment)
    if start != folder.work:  # modules of the bundle are found regardless of the start folder
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder.work), base.get("PYTHONPATH", "")]))
    return LaunchPlan(
        argv=start_argv(method.argv, command, folder),
        how=method.how if environment is None else "spawn",  # the launcher has the host's packages
        cwd=str(start),
        threads=threads,
        store_host=command.master_addr if command.hosts_store and hosts_stores else None,
        store_port=command.store_port or command.master_port,
        node_count=command.node_count,
        live=command.live,
        set_by_job=tuple(sorted({*command.env, *command.secrets})),
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


def write_plan(plan: LaunchPlan, folder: RunFolder) -> None:
    """Write the order to the files that the launcher reads, with a file for the environment of each rank."""
    for rank, env in plan.ranks.items():
        write_json(folder.env(rank), env)
    write_json(folder.launch, plan.without_environments().to_json())
