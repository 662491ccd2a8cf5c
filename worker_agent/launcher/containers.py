"""Ranks in containers: each rank is one container, and the launcher's child process is the engine's client.

The client forwards SIGTERM, exits with the container's exit code and prints its output. So the launcher
stops, reaps and logs a containerised rank like any other. SIGKILL is the exception: it kills the client but
not the container, which `remove` kills.

The client runs with the agent's rights, so it must not see anything of the job. The job's variables enter the
container through a memory file of this process, and never through the client's own environment or command
line.
"""

from __future__ import annotations

import os
import pwd
import resource
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Engine = Literal["docker", "podman"]
_HOSTS_OWN = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONUSERBASE", "CUDA_HOME", "SHELL"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
"""Host variables that name paths on the host; the image sets its own."""
_REMOVE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Settings that the containers of a run's ranks share."""

    engine: Engine
    program: str
    """Path of the engine's client."""
    image: str
    name: str
    """Name of the run; the container of a rank appends the rank's number."""
    user: str
    groups: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of the host that ranks see at the same path and can write to."""
    memory_bytes: int | None = None
    cpus: float | None = None
    """Processors of each rank. `memory_bytes` is also a limit per rank."""
    max_processes: int = 0

    def name_of(self, rank: int) -> str:
        """Return the name of a rank's container."""
        return f"{self.name}-{rank}"


class CannotHold(ValueError):
    """Raised when a variable has a value that cannot be passed to a container."""


def run_command(
    container: Container, rank: int, argv: Sequence[str], *, cwd: str, devices: str, env_file: str
) -> list[str]:
    """Return the client's command line for one rank. `devices` are the UUIDs of its GPUs, separated by commas."""
    mounts = [f"type=bind,source={folder},target={folder}" for folder in container.folders]
    return [
        container.program,
        "run",
        "--rm",
        "--init",
        f"--name={container.name_of(rank)}",
        "--network=host",
        "--ipc=host",
        "--log-driver=none",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--ulimit=core=0",
        *(_podmans_ulimits(container.max_processes) if container.engine == "podman" else []),
        f"--user={container.user}",
        *(["--userns=keep-id"] if container.engine == "podman" and os.geteuid() != 0 else []),
        *(f"--group-add={group}" for group in container.groups),
        f"--pids-limit={container.max_processes}",
        *_bounds(container),
        *_gpus(container.engine, devices),
        *(f"--mount={mount}" for mount in mounts),
        f"--workdir={cwd}",
        f"--env-file={env_file}",
        container.image,
        *argv,
    ]


def env_lines(env: Mapping[str, str]) -> bytes:
    """Return the rank's variables in the format of the client's `--env-file`.

    Raises:
        CannotHold: a value has several lines, which the format does not support.
    """
    given = {name: value for name, value in env.items() if name not in _HOSTS_OWN}
    for name, value in given.items():
        if "\n" in value or "\r" in value:
            raise CannotHold(f"{name}: a value with a line break cannot be passed to a container")
    return "".join(f"{name}={value}\n" for name, value in sorted(given.items())).encode()


def client_env() -> dict[str, str]:
    """Return the variables that the client needs to find its configuration and its engine."""
    user = os.getuid()
    runtime = f"/run/user/{user}"
    found = {"PATH": os.environ.get("PATH", os.defpath), "HOME": pwd.getpwuid(user).pw_dir}
    return {**found, "XDG_RUNTIME_DIR": runtime} if Path(runtime).is_dir() else found


def become(container: Container, rank: int, argv: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> None:
    """Replace this process with the client that runs the rank. Never returns.

    Raises:
        CannotHold, OSError: the client cannot be started.
    """
    lines = env_lines(env)
    memory = os.memfd_create("env", 0)  # without MFD_CLOEXEC: the client inherits it
    os.write(memory, lines)
    os.lseek(memory, 0, os.SEEK_SET)
    os.chdir("/")
    devices = env.get("CUDA_VISIBLE_DEVICES", "")
    command = run_command(container, rank, argv, cwd=cwd, devices=devices, env_file=f"/proc/self/fd/{memory}")
    os.execve(container.program, command, client_env())  # noqa: S606


def remove(container: Container, ranks: Sequence[int]) -> bool:
    """Kill and remove the containers of these ranks, and return True if none is left.

    It takes up to a minute per rank, so call it in a child process.
    """
    for rank in ranks:
        command = [container.program, "rm", "--force", container.name_of(rank)]
        try:
            done = subprocess.run(
                command, env=client_env(), capture_output=True, timeout=_REMOVE_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if done.returncode != 0 and b"no such container" not in done.stderr.lower():
            return False
    return True


def _bounds(container: Container) -> list[str]:
    found = []
    if container.memory_bytes is not None:
        found += [f"--memory={container.memory_bytes}", f"--memory-swap={container.memory_bytes}"]
    if container.cpus is not None:
        found.append(f"--cpus={container.cpus:g}")
    return found


def _podmans_ulimits(max_processes: int) -> list[str]:
    """Return limits that this agent may grant.

    Beside any `--ulimit`, Podman ignores the defaults of its configuration and asks for limits of its own, which
    the kernel refuses to an agent without CAP_SYS_RESOURCE: then no container starts.
    """
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    most_processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = (
        max_processes if most_processes == resource.RLIM_INFINITY else min(max_processes, most_processes)
    )
    return [f"--ulimit=nofile={files}:{most_files}", f"--ulimit=nproc={processes}:{processes}"]


def _gpus(engine: Engine, devices: str) -> list[str]:
    if not devices:
        return []
    if engine == "docker":
        return [f'--gpus="device={devices}"']  # the value is a list, with its own quotes
    return [f"--device=nvidia.com/gpu={device}" for device in devices.split(",")]
