"""Ranks in containers: each is one container, and the engine's client is its process to the launcher.

So a rank is stopped, waited for and logged as any other: the client hands SIGTERM on, ends with the container's exit code
and prints its output. Only what kills the client does not kill the container; `remove` does.

The client runs with the agent's rights. Nothing of the job may reach it: the job's variables go into the container through a
file that only this process has, and never into the client's own environment or command line.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Engine = Literal["docker", "podman"]
_HOSTS_OWN = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONUSERBASE", "CUDA_HOME", "SHELL"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
"""Variables of the host that say where something lies on it: the image has its own."""
_REMOVE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the containers of a run's ranks have in common."""

    engine: Engine
    program: str
    """Path of the engine's client."""
    image: str
    name: str
    """Of the run; a rank's container adds its number."""
    user: str
    groups: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of the host that ranks see at the same place, and write to."""
    memory_bytes: int | None = None
    cpus: float | None = None
    """Bounds of each rank."""
    max_processes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values for the launcher's order."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Container:
        """The reverse of `to_json`. Fields of a newer agent are ignored.

        Raises:
            TypeError: a field is missing.
        """
        values: dict[str, Any] = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        return cls(**{**values, **{name: tuple(values.get(name, ())) for name in ("groups", "folders")}})

    def name_of(self, rank: int) -> str:
        """The name of a rank's container."""
        return f"{self.name}-{rank}"


class CannotHold(ValueError):
    """A variable has a value that cannot be given to a container."""


def run_command(
    container: Container, rank: int, argv: Sequence[str], *, cwd: str, devices: str, env_file: str
) -> list[str]:
    """The client's command line for one rank. `devices` are the UUIDs of its GPUs, separated by commas."""
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
    """The rank's variables as the client reads them from a file.

    Raises:
        CannotHold: a value has several lines, which such a file cannot say.
    """
    given = {name: value for name, value in env.items() if name not in _HOSTS_OWN}
    for name, value in given.items():
        if "\n" in value or "\r" in value:
            raise CannotHold(f"{name}: a value with a line break cannot be given to a container")
    return "".join(f"{name}={value}\n" for name, value in sorted(given.items())).encode()


def client_env() -> dict[str, str]:
    """What the client itself needs to find its configuration and its engine."""
    user = os.getuid()
    runtime = f"/run/user/{user}"
    found = {"PATH": os.environ.get("PATH", os.defpath), "HOME": pwd.getpwuid(user).pw_dir}
    return {**found, "XDG_RUNTIME_DIR": runtime} if Path(runtime).is_dir() else found


def become(container: Container, rank: int, argv: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> None:
    """Turn this process into the client that runs the rank: returns only by an error.

    Raises:
        CannotHold, OSError: it cannot be started.
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
    """Kill and remove the containers of these ranks; whether none is left. Takes up to a minute: in a child."""
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


def _gpus(engine: Engine, devices: str) -> list[str]:
    if not devices:
        return []
    if engine == "docker":
        return [f'--gpus="device={devices}"']  # the quotation marks are the option's own: it holds a list
    return [f"--device=nvidia.com/gpu={device}" for device in devices.split(",")]
