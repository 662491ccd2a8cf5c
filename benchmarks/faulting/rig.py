"""A complete cluster on this machine. Each part is a separate process, so that faults can be injected into it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from benchmarks.faulting.hosts import SmallDisk, WrongClocks
from benchmarks.faulting.network import Address, ProxyNetwork
from benchmarks.networking.namespaces import Bridge, Namespace, bridge
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.errors import HeadwayError
from headway.local.agents import agent_program
from headway.local.ports import HOST, free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.processes import LocalError, birth, last_lines, open_log
from headway.local.redis import EmbeddedRedis
from headway.local.supervisor import Child, Program
from worker_agent.launcher import processes

READY_TIMEOUT_S = 120.0
_RESTART_S = 0.5
"""Seconds until a program that ended is restarted, as by an init system."""
_LOOK_EVERY_S = 0.1
_AGENT_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the cluster, and its timeouts."""

    apis: int = 2
    schedulers: int = 2
    agents: int = 3
    slots: int = 2
    lease_s: float = 20.0
    silence_s: float = 6.0
    apart: bool = False
    """Each agent has a network namespace of its own."""


@dataclass
class _Kept:
    child: Child
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    starts: int = 1


class Rig:
    """Stores, services and agents as child processes, and the links between them.

    Faults are injected by process id or link. A part that ends is restarted after `_RESTART_S`.

    Args:
        folder: folder for all data.
        note: called with events for the record.
    """

    def __init__(self, folder: Path, shape: Shape, note: Callable[..., None]) -> None:
        self.folder = folder
        self.shape = shape
        self.logs = folder / "logs"
        self.network = ProxyNetwork()
        self.disks = {"storage": SmallDisk(folder / "storage")}
        self.disks |= {name: SmallDisk(self.agent_state(name)) for name in self.names("agent")}
        self.storage = self.disks["storage"]
        self.clocks = WrongClocks(folder / "clocks")
        self.postgres = EmbeddedPostgres(folder / "postgres")
        self.redis = EmbeddedRedis(folder / "redis")
        self.programs: dict[str, Program] = {}
        self.token, self._join_token = secrets.token_hex(16), secrets.token_hex(16)
        self._note = note
        self._kept: dict[str, _Kept] = {}
        self._ports = {name: free_port() for name in self.names("api")}
        self.url = ""
        self.hosts: dict[str, Namespace] = {}
        """Hosts by the names of their agents; empty unless these are apart."""
        self.service_address = self.queue_address = HOST
        self._bridge: Bridge | None = None
        self._exits = ExitStack()

    def names(self, what: str) -> list[str]:
        """Return the names of all programs of a kind: `api`, `scheduler` or `agent`."""
        count = {"api": self.shape.apis, "scheduler": self.shape.schedulers, "agent": self.shape.agents}[what]
        return [f"{what}-{number}" for number in range(1, count + 1)]

    def client(self, patience_s: float = 60.0) -> Client:
        """Return a user's client, which reaches any API through the users' link."""
        return Client(self.url, self.token, patience_s=patience_s)

    def api_at(self, address: Address) -> str:
        """Return the name of the API that listens on an address."""
        return next(name for name, port in self._ports.items() if address == (HOST, port))

    def agent_state(self, name: str) -> Path:
        """Return the folder of an agent."""
        return self.folder / "agents" / name

    def start(self) -> None:
        """Start all parts, and wait until every node takes jobs.

        Raises:
            LocalError: a part does not start.
        """
        self.logs.mkdir()
        if self.shape.apart:
            self._bridge = self._exits.enter_context(bridge())
            self.service_address, self.queue_address = self._bridge.address(1), self._bridge.address(2)
        database, queue = self.postgres.start(), self.redis.start()
        self._keep("postgres", self.postgres)
        self._keep("redis", self.redis)
        self._migrate(self._environment(database, queue))
        apis: list[Address] = [(HOST, port) for port in self._ports.values()]
        self.url = f"http://{HOST}:{self.network.add('users-api', lambda: apis).port}"
        redis_port = urlsplit(queue).port or 0
        agents_redis = self.network.add("agents-redis", lambda: [(HOST, redis_port)], self.queue_address)
        for name in [*self.names("api"), *self.names("scheduler")]:
            self._service(name, queue, agents_redis.port)
        for name in self.names("agent"):
            self._agent(name, apis)
        self._wait_ready()

    def stop(self) -> None:
        """Stop all parts in order: schedulers, agents with their ranks, APIs, stores."""
        self.heal()
        for prefix in ("scheduler", "agent", "api", "redis", "postgres"):
            names = [name for name in self._kept if name.startswith(prefix)]
            for name in names:
                self._kept[name].stop.set()
            threads = [threading.Thread(target=self._end, args=[self._kept.pop(name)]) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.network.close()
        self._exits.close()

    def heal(self) -> None:
        """Reset links, hosts, disks and clocks to their normal state."""
        self.network.heal()
        for host in self.hosts.values():
            host.heal()
        self.clocks.correct()
        for disk in self.disks.values():
            disk.empty()

    def close(self) -> None:
        """Unmount the disks, with loss of their content."""
        for disk in self.disks.values():
            disk.close()

    def tcp_tables(self, agent: str) -> list[str]:
        """Return the lines of the kernel's tables of TCP sockets on the host of an agent."""
        command = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
        if agent in self.hosts:
            command = self.hosts[agent].inside(*command)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def starts(self) -> dict[str, int]:
        """Return the number of starts of each part."""
        return {name: kept.starts for name, kept in self._kept.items()}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Starting

    def _environment(self, database: str, queue: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        return {
            **inherited,
            "HEADWAY_DATABASE_URL": database,
            "HEADWAY_REDIS_URL": queue,
            "HEADWAY_STORAGE_URL": self.storage.folder.as_uri(),
            "HEADWAY_API_TOKEN": self.token,
            "HEADWAY_JOIN_TOKEN": self._join_token,
            "HEADWAY_LEASE_S": str(self.shape.lease_s),
            "HEADWAY_SILENCE_S": str(self.shape.silence_s),
        }

    def _migrate(self, env: Mapping[str, str]) -> None:
        path = self.logs / "migrate.log"
        log = open_log(path)
        try:
            command = [sys.executable, "-m", "service", "migrate"]
            done = subprocess.run(command, env=env, stdout=log, stderr=log, cwd=self.logs, check=False)
        finally:
            os.close(log)
        if done.returncode:
            raise LocalError(f"The database could not be migrated:\n{last_lines(path)}")

    def _service(self, name: str, queue: str, agents_redis: int) -> None:
        parts = urlsplit(self.postgres.url())
        socket_ = Path(parts.query.removeprefix("host=")) / ".s.PGSQL.5432"
        redis = urlsplit(queue)
        to_postgres = self.network.add(f"{name}-postgres", lambda: [socket_])
        to_redis = self.network.add(f"{name}-redis", lambda: [(HOST, redis.port or 0)])
        env = self._environment(
            f"postgresql://{parts.username}@{HOST}:{to_postgres.port}/headway",
            redis._replace(netloc=f":{redis.password}@{HOST}:{to_redis.port}").geturl(),
        )
        env["HEADWAY_AGENT_REDIS_URL"] = redis._replace(
            netloc=f":{redis.password}@{self.queue_address}:{agents_redis}"
        ).geturl()
        env |= self.clocks.env(name)
        role = name.partition("-")[0]
        if role == "api":
            env |= {"HEADWAY_HOST": HOST, "HEADWAY_PORT": str(self._ports[name])}
        command = [sys.executable, "-u", "-m", "service", role]
        self._run(name, Program(command, env, self.logs / f"{name}.log"))

    def _agent(self, name: str, apis: list[Address]) -> None:
        link = self.network.add(f"{name}-api", lambda: apis, self.service_address)
        arguments, inside = ["--slots", str(self.shape.slots)], []
        if self._bridge is None:
            arguments += ["--address", HOST]
        else:
            self.hosts[name] = self._bridge.add(name)
            inside = self.hosts[name].inside()
        env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
        env["HEADWAY_JOIN_TOKEN"] = self._join_token
        env["HEADWAY_ISOLATION"] = "none"  # ranks write their journals outside of their own folders
        program = agent_program(
            name,
            f"http://{self.service_address}:{link.port}",
            state=self.agent_state(name),
            log=self.logs / f"{name}.log",
            env=env,
            arguments=arguments,
            grace_s=_AGENT_GRACE_S,
            inside=inside,
        )
        self._run(name, program)

    def _run(self, name: str, program: Program) -> None:
        program.start()
        self.programs[name] = program
        self._keep(name, program)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        with self.client(patience_s=READY_TIMEOUT_S) as client:
            while True:
                ready = [node for node in client.nodes() if node.state is NodeState.READY]
                if len(ready) == self.shape.agents:
                    return
                if time.monotonic() > deadline:
                    raise LocalError(f"Not every node was ready in {READY_TIMEOUT_S:.0f} s; see {self.logs}.")
                time.sleep(_LOOK_EVERY_S)

    # Keeping

    def _keep(self, name: str, child: Child) -> None:
        kept = _Kept(child)
        self._kept[name] = kept
        kept.thread = threading.Thread(target=self._keep_running, args=[name, kept], daemon=True)
        kept.thread.start()

    def _keep_running(self, name: str, kept: _Kept) -> None:
        while not kept.stop.wait(_LOOK_EVERY_S):
            if kept.child.alive() or kept.stop.wait(_RESTART_S):
                continue
            try:
                kept.child.start()
            except (LocalError, OSError) as error:
                self._note("not_started", who=name, error=str(error))
            else:
                kept.starts += 1

    def _end(self, kept: _Kept) -> None:
        assert kept.thread is not None
        kept.thread.join()
        pid = getattr(kept.child, "pid", None)
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # a stopped process does not handle SIGTERM
        kept.child.stop()


def launchers(state: Path) -> list[int]:
    """Return the process ids of the launchers of an agent's folder.

    Forked ranks have the same command line, but are children of a launcher.
    """
    parents = {}
    for pid in process_ids():
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            process = processes.read(pid)
            if process and b"worker_agent.launcher" in arguments and os.fsencode(state) in arguments:
                parents[pid] = process.parent
    return [pid for pid, parent in parents.items() if parent not in parents and birth(pid) is not None]


def process_ids() -> list[int]:
    """Return the ids of all processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def answers(client: Client) -> bool:
    """Return True if the service reports that it is ready."""
    try:
        return client.ready()
    except HeadwayError:
        return False
