"""All of Headway on this machine: stores, service, agents, in one data folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from headway.client import Client
from headway.contract.agents import NodeState
from headway.errors import HeadwayError
from headway.local.ports import HOST, free_port, is_free
from headway.local.postgres import EmbeddedPostgres
from headway.local.processes import LocalError, end, last_lines, open_log, read_pid_file, write_pid_file
from headway.local.redis import EmbeddedRedis
from headway.local.supervisor import Program, Supervisor, end_left_over

_PID_FILE = "up.pid"
_READY_FILE = "up.ready"  # there while everything runs; holds the process id and the URL
_READY_TIMEOUT_S = 90.0
_AGENT_GRACE_S = 60.0
_STOP_TIMEOUT_S = 150.0
_FIRST_JOB_PORT = 21000
_JOB_PORTS_PER_AGENT = 100
_JOB_PORT_BLOCKS = 100  # below 32768, where the kernel takes ports for outgoing connections
_POLL_S = 0.05
_SERVICE_ONLY = frozenset(
    {
        "HEADWAY_DATABASE_URL",
        "HEADWAY_REDIS_URL",
        "HEADWAY_AGENT_REDIS_URL",
        "HEADWAY_API_TOKEN",
        "HEADWAY_TOKEN",
    }
)
"""What neither an agent nor the jobs that it runs may know."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stores:
    """Stores to use in place of embedded ones. None starts or makes one in the data folder."""

    database_url: str | None = None
    redis_url: str | None = None
    storage_url: str | None = None

    @classmethod
    def configured(cls, env: Mapping[str, str]) -> Stores:
        """What `HEADWAY_DATABASE_URL`, `HEADWAY_REDIS_URL` and `HEADWAY_STORAGE_URL` name."""
        names = ("HEADWAY_DATABASE_URL", "HEADWAY_REDIS_URL", "HEADWAY_STORAGE_URL")
        return cls(*(env.get(name) or None for name in names))


class LocalStack:
    """Postgres, Redis, the API, the scheduler and agents as child processes, looked after until `stop`.

        with LocalStack(folder, agents=2, slots=2) as stack, stack.client() as client:
            client.submit(...)

    Args:
        data: everything is kept here; a later stack over it goes on where this one stopped.
        agents: how many, named `local-1`, `local-2`, ...
        slots: of each agent; None divides what the machine has.
        port: of the API; None takes a free one.
        stores: servers to use in place of the embedded ones.
    """

    def __init__(
        self,
        data: Path,
        *,
        agents: int = 1,
        slots: int | None = None,
        port: int | None = None,
        stores: Stores = Stores(),
    ) -> None:
        self.data = data.expanduser().resolve()
        self.logs = self.data / "logs"
        self.programs: dict[str, Program] = {}
        """What runs beside the stores, by name: `api`, `scheduler`, `agent local-1`, ..."""
        self._agents = agents
        self._slots = slots
        self._port = port
        self._stores = stores
        self._supervisor = Supervisor()
        self._lock: int | None = None
        self.url = ""
        self.token = ""

    def start(self) -> None:
        """Start everything and return when the API answers and every agent's node is READY.

        Raises:
            LocalError: another stack uses the folder, a port is taken, or something does not start;
                what was started is stopped again.
        """
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)
        self._take_lock()
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything in order: agents with their ranks, the service, the stores. Idempotent."""
        self._supervisor.stop()
        self.programs.clear()
        if self._lock is not None:
            (self.data / _READY_FILE).unlink(missing_ok=True)
            (self.data / _PID_FILE).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def client(self) -> Client:
        """A client of this stack's service."""
        return Client(self.url, self.token)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _take_lock(self) -> None:
        lock = os.open(self.data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise LocalError(
                f"Headway already runs on {self.data}.",
                "Use it, stop it with `headway down`, or give another folder with --data.",
            ) from None
        self._lock = lock
        write_pid_file(self.data / _PID_FILE, os.getpid())

    def _start_all(self) -> None:
        end_left_over(self.logs)
        port = self._port if self._port is not None else free_port()
        if not is_free(port):
            raise LocalError(
                f"Port {port} is taken by another program.", "End that one, or choose another with --port."
            )
        self.url = f"http://{HOST}:{port}"
        tokens = _Tokens.kept_in(self.data / "secrets.json")
        self.token = tokens.api
        service = {
            **os.environ,  # its other settings, such as HEADWAY_LEASE_S, are passed on
            "HEADWAY_DATABASE_URL": self._database(),
            "HEADWAY_REDIS_URL": self._redis(),
            "HEADWAY_STORAGE_URL": self._stores.storage_url or _folder_url(self.data / "storage"),
            "HEADWAY_API_TOKEN": tokens.api,
            "HEADWAY_JOIN_TOKEN": tokens.join,
            "HEADWAY_HOST": HOST,
            "HEADWAY_PORT": str(port),
        }
        self._migrate(service)
        self._run("api", [*_python("service"), "api"], service)
        self._wait_for("api", self._answers, "the API to answer")
        self._run("scheduler", [*_python("service"), "scheduler"], service)
        for number in range(1, self._agents + 1):
            self._run_agent(number, tokens.join)
        for number in range(1, self._agents + 1):
            node = f"local-{number}"
            self._wait_for(f"agent {node}", partial(self._is_ready, node), f"node {node} to be READY")
        self._supervisor.start()
        (self.data / _READY_FILE).write_text(f"{os.getpid()} {self.url}")

    def _database(self) -> str:
        if self._stores.database_url is not None:
            return self._stores.database_url
        _log.info("starting PostgreSQL")
        postgres = EmbeddedPostgres(self.data / "postgres")
        url = postgres.start()
        self._supervisor.add("PostgreSQL", postgres)
        return url

    def _redis(self) -> str:
        if self._stores.redis_url is not None:
            return self._stores.redis_url
        _log.info("starting Redis")
        redis = EmbeddedRedis(self.data / "redis")
        url = redis.start()
        self._supervisor.add("Redis", redis)
        return url

    def _migrate(self, env: Mapping[str, str]) -> None:
        _log.info("bringing the database up to date")
        path = self.logs / "migrate.log"
        log = open_log(path)
        try:
            argv = [*_python("service"), "migrate"]
            done = subprocess.run(argv, env=env, cwd=self.logs, stdout=log, stderr=log, check=False)
        finally:
            os.close(log)
        if done.returncode != 0:
            raise LocalError(
                f"The database could not be brought up to date:\n{last_lines(path)}", f"The log is {path}."
            )

    def _run_agent(self, number: int, join_token: str) -> None:
        name = f"local-{number}"
        slots = self._slots
        if slots is None and self._agents > 1:
            slots = max((os.cpu_count() or 1) // self._agents, 1)
        first_port = _first_job_port(self.data) + (number - 1) * _JOB_PORTS_PER_AGENT
        argv = [*_python("worker_agent"), "--url", self.url, "--name", name, "--own-jobs"]
        argv += ["--state-dir", str(self.data / "agents" / name), "--address", HOST]
        argv += ["--ports", f"{first_port}-{first_port + _JOB_PORTS_PER_AGENT - 1}"]
        argv += ["--slots", str(slots)] if slots is not None else []
        env = {name: value for name, value in os.environ.items() if name not in _SERVICE_ONLY}
        env["HEADWAY_JOIN_TOKEN"] = join_token
        self._run(f"agent {name}", argv, env, grace_s=_AGENT_GRACE_S)

    def _run(self, name: str, argv: list[str], env: Mapping[str, str], *, grace_s: float = 15.0) -> None:
        _log.info("starting %s", name)
        program = Program(argv, env, self.logs / f"{name.replace(' ', '-')}.log", grace_s=grace_s)
        program.start()
        self.programs[name] = program
        self._supervisor.add(name, program)

    def _wait_for(self, name: str, condition: Callable[[], bool], what: str) -> None:
        program = self.programs[name]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not condition():
            if not program.alive():
                raise LocalError(
                    f"{name} ended with code {program.exit_code} at its start:\n{last_lines(program.log)}",
                    f"Its log is {program.log}.",
                )
            if time.monotonic() > deadline:
                raise LocalError(
                    f"Waited {_READY_TIMEOUT_S:.0f} s for {what}.", f"See the log {program.log}."
                )
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        with Client(self.url, self.token, patience_s=0) as client:
            try:
                return client.ready()
            except HeadwayError:
                return False

    def _is_ready(self, node: str) -> bool:
        with self.client() as client:
            return any(each.name == node and each.state is NodeState.READY for each in client.nodes())


def running_url(data: Path, pid: int) -> str | None:
    """URL of the service of the stack that process `pid` runs over a data folder; None until it is up."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        up_pid, url = (data / _READY_FILE).read_text().split()
        return url if up_pid == str(pid) else None
    return None


def stop_running(data: Path) -> bool:
    """Stop the stack that another process runs over a data folder, and wait until it is gone.

    Returns:
        False when none runs there.

    Raises:
        LocalError: it does not stop.
    """
    pid = read_pid_file(data.expanduser() / _PID_FILE)
    if pid is None:
        return False
    if not end(pid, (signal.SIGTERM,), _STOP_TIMEOUT_S):
        raise LocalError(
            f"Process {pid} does not stop.", f"See {data / 'logs'}, or end it with: kill -9 {pid}"
        )
    return True


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The credentials of a data folder."""

    api: str
    join: str

    @classmethod
    def kept_in(cls, file: Path) -> _Tokens:
        """Those of last time, or new ones, readable by this user alone."""
        with contextlib.suppress(FileNotFoundError):
            saved = json.loads(file.read_text())
            return cls(saved["api_token"], saved["join_token"])
        tokens = cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        temporary = file.with_suffix(".tmp")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
            json.dump({"api_token": tokens.api, "join_token": tokens.join}, handle)
        temporary.replace(file)
        return tokens


def _python(module: str) -> list[str]:
    return [sys.executable, "-u", "-m", module]


def _folder_url(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return folder.as_uri()


def _first_job_port(data: Path) -> int:
    """Another block of ports for every data folder, so that two stacks seldom meet."""
    block = int.from_bytes(hashlib.sha256(os.fsencode(data)).digest()[:2]) % _JOB_PORT_BLOCKS
    return _FIRST_JOB_PORT + block * _JOB_PORTS_PER_AGENT
