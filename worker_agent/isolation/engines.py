"""Detection of this host's container engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.agents import RunCommand
from worker_agent.host.folders import RunFolder
from worker_agent.isolation.modes import MAX_PROCESSES, Isolation, checkpoint_folder, device_groups
from worker_agent.isolation.scratch import scratch_of
from worker_agent.launcher.containers import Container, Engine, client_env

_ANSWERS_WITHIN_S = 5.0
_ASK: dict[Engine, tuple[str, ...]] = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("version",),
}


@dataclass(frozen=True, slots=True)
class DetectedEngine:
    """The container engine of this host and its client program. Without an engine, `problem` gives the reason."""

    engine: Engine | None = None
    program: str = ""
    problem: str = ""


def find(env: Mapping[str, str]) -> DetectedEngine:
    """Return the first engine that answers. A client without a running engine is not enough."""
    silent = []
    for engine, arguments in _ASK.items():
        program = shutil.which(engine, path=env.get("PATH"))
        if program is None:
            continue
        try:
            asked = subprocess.run(
                [program, *arguments],
                env=client_env(),
                capture_output=True,
                timeout=_ANSWERS_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            silent.append(engine)
            continue
        if asked.returncode == 0:
            return DetectedEngine(engine, program)
        silent.append(engine)
    if silent:
        return DetectedEngine(problem=f"{' and '.join(silent)} is installed, but its engine does not answer")
    return DetectedEngine(problem="neither docker nor podman is installed")


def container_of(
    command: RunCommand, folder: RunFolder, found: DetectedEngine, isolation: Isolation
) -> Container | None:
    """Return the containers of a run's ranks, or None if the run has no image or the host has no engine."""
    if command.image is None or found.engine is None:
        return None
    user = isolation.user_of(command.job_id)
    job = folder.job
    shared = [folder.work, job.home, job.output, scratch_of(job, isolation.scratch), folder.control]
    checkpoints = checkpoint_folder(command)
    shared += [checkpoints] if checkpoints is not None and checkpoints.is_dir() else []
    return Container(
        engine=found.engine,
        program=found.program,
        image=command.image,
        name=f"headway-{folder.name.replace('/', '-')}",
        user=f"{os.getuid()}:{os.getgid()}" if user is None else f"{user}:{user}",
        groups=device_groups(),
        folders=tuple(str(one.resolve()) for one in shared),
        memory_bytes=command.memory_per_slot_bytes,
        cpus=command.cpus_per_slot,
        max_processes=MAX_PROCESSES,
    )
