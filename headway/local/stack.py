"""All of Headway on this machine: stores, service and agents in one data folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.views.diagnosis import Level
from headway.contract.views.identity import TOKEN_PREFIX
from headway.errors import HeadwayError
from headway.local.agents import agent_program
from headway.local.devices import gpu_count, share
from headway.local.guard import MARK
from headway.local.ports import ANY_PORT, HOST, free_port, is_free
from headway.local.postgres import EmbeddedPostgres
from headway.local.processes import (
    LocalError,
    Startable,
    end,
    last_lines,
    read_pid_file,
    spawn,
    write_pid_file,
)
from headway.local.redis import EmbeddedRedis
from headway.local.rented import RentedMachines, read_offers
from headway.local.supervisor import Program, Supervisor, end_left_over
from headway.private_files import write_private
from headway.tls import CA_FILE

_PID_FILE = "up.pid"
_READY_FILE = "up.ready"  # exists while everything runs; holds the process id and the URL
_RENTAL_FILE = "rental.json"
_RENTAL_VARIABLE = re.compile(rf"(?!{MARK}$)(HEADWAY|SLURM)_")
"""Variables that name the machines' provider, the stores and their settings."""
_READY_TIMEOUT_S = 90.0
_AGENT_GRACE_S = 60.0
_STOP_TIMEOUT_S = 150.0
_POLL_S = 0.05
_LEASE_NOISE_S = 0.5
_ADMIN = "owner"
_SERVICE_ONLY = frozenset(
    {
        "HEADWAY_DATABASE_URL",
        "HEADWAY_REDIS_URL",
        "HEADWAY_AGENT_REDIS_URL",
        "HEADWAY_API_TOKEN",
        "HEADWAY_TOKEN",
        "HEADWAY_SECRETS_KEY",
        "HEADWAY_SECRETS_COMMAND",
    }
)
"""Variables that agents and their jobs must not see."""

_log = logging.getLogger(__name__)


class _Layer(IntEnum):
    """Layers of the stack. A layer depends on the lower ones, and the highest stops first.

    The scheduler stops before the agents, so that it starts nothing while they stop their jobs. The API stops
    after the agents, so that their last reports arrive.
    """

    DATABASE = 0
    QUEUE = 1
    API = 2
    AGENTS = 3
    SCHEDULER = 4


@dataclass(frozen=True, slots=True)
class Stores:
    """External stores. A store that is None is embedded: the stack runs it in the data folder."""

    database_url: str | None = None
    redis_url: str | None = None
    storage_url: str | None = None

    @classmethod
    def configured(cls, env: Mapping[str, str]) -> Stores:
        """Return the stores of `HEADWAY_DATABASE_URL`, `HEADWAY_REDIS_URL` and `HEADWAY_STORAGE_URL`."""
        names = ("HEADWAY_DATABASE_URL", "HEADWAY_REDIS_URL", "HEADWAY_STORAGE_URL")
        return cls(*(env.get(name) or None for name in names))


@dataclass(frozen=True, slots=True)
class Reach:
    """Rental of other hosts. `address` is the IP address of this machine that they reach."""

    provider: str
    address: str

    @property
    def host(self) -> str:
        """Return the address as URLs have it."""
        return f"[{self.address}]" if ":" in self.address else self.address


def url_of(reach: Reach | None, port: int) -> str:
    """Return the URL of the API."""
    return f"http://{HOST}:{port}" if reach is None else f"https://{reach.host}:{port}"


@dataclass(frozen=True, slots=True)
class Rental:
    """Rental of a stack, as its data folder keeps it while machines may be rented.

    `port` is that of the API. `env` are the variables of Headway and Slurm with which it was started.
    """

    reach: Reach
    port: int
    env: Mapping[str, str]

    def store(self, data: Path) -> None:
        """Store it with access for this user only: the variables may have passwords."""
        write_private(data / _RENTAL_FILE, json.dumps(asdict(self)))


def rental_of(data: Path) -> Rental | None:
    """Return the rental of a stack that was killed or could not return its machines, or None if all were returned."""
    try:
        kept = json.loads((data.expanduser() / _RENTAL_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Rental(Reach(**kept["reach"]), kept["port"], kept["env"])


class ReturnedMachines:
    """All rented machines of a provider, as one child of `headway up`: the service rents them, and they end with the stack.

    Args:
        env: complete environment of the service.
        log: file to which the output of their return is appended.
        rental: file of the rental, which is removed once all machines are returned.
    """

    def __init__(self, env: Mapping[str, str], log: Path, rental: Path) -> None:
        self.log = log
        self._env = env
        self._rental = rental

    def start(self) -> None:
        """Do nothing, since the service rents machines."""

    def alive(self) -> bool:
        """Return True, so that the supervisor never restarts this child."""
        return True

    def stop(self) -> None:
        """Return all machines to their provider, and wait until they are gone."""
        argv = [*_python("service"), "return-machines"]
        start = self.log.stat().st_size if self.log.exists() else 0
        with spawn(argv, self.log, env=self._env, cwd=self.log.parent, start_new_session=True) as returning:
            if returning.wait() == 0:
                self._rental.unlink(missing_ok=True)
            else:
                _log.warning("%s", last_lines(self.log, start=start))


class LocalStack(Startable):
    """Postgres, Redis, the API, the scheduler and agents as supervised child processes.

        with LocalStack(folder, agents=2, slots=2) as stack, stack.client() as client:
            client.submit(...)

    Args:
        data: folder of all state; a later stack over it continues where this one stopped.
        agents: number of agents, named `local-1`, `local-2`, ...
        slots: slots of each agent; None divides the GPUs or cores of this machine.
        device_kind: kind of these slots, such as `cpu`; None: its GPUs, or `cpu` where they are too few.
        port: port of the API; None takes a free one.
        stores: servers to use in place of the embedded ones.
        prices: slot prices, as in `HEADWAY_PRICES`; None keeps those of the environment.
        rent: offers file for machines that are rented on this one; None rents nothing.
        reach: how other hosts are rented and reach this one; None: everything listens on loopback only.
        settings: further environment variables of the service.
    """

    def __init__(
        self,
        data: Path,
        *,
        agents: int = 1,
        slots: int | None = None,
        device_kind: str | None = None,
        port: int | None = None,
        stores: Stores = Stores(),
        prices: str | None = None,
        rent: Path | None = None,
        reach: Reach | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data = data.expanduser().resolve()
        self.logs = self.data / "logs"
        self.join_token_file = self.data / "join-token"
        self.token_file = self.data / "admin-token"
        """File with the token of the user `owner`, who is an admin."""
        self.programs: dict[str, Program] = {}
        """Programs beside the stores, by name: `api`, `scheduler`, `agent local-1`, ..."""
        self._agents = agents
        self.share = share(agents, slots, device_kind, gpus=gpu_count(), cpus=os.cpu_count() or 1)
        self._port = port
        self._stores = stores
        self._prices = prices
        self._rent = rent
        self._reach = reach
        self._settings = settings
        self.machines = RentedMachines(self.data / "machines")
        self._supervisor = Supervisor()
        self._lock: int | None = None
        self._service: Mapping[str, str] = {}
        self.url = ""
        self.ca_file: str | None = None
        """Certificate file that clients of this stack have to trust; None without TLS."""
        self.token = ""
        self.token_is_new = False
        """True if this start created the token."""

    def start(self) -> None:
        """Start everything, and return when the API answers, every agent's node is READY and a scheduler leads.

        Raises:
            LocalError: another stack uses the folder, a port is taken, or a program does not start. Programs
                that were started are stopped again.
        """
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)
        self._take_lock()
        try:
            self._start_work(self._start_service())
        except BaseException:
            self.stop()
            raise

    def return_machines(self) -> None:
        """Return all machines that a killed stack over this folder rented, and stop. No job starts meanwhile.

        Raises:
            LocalError: another stack uses the folder, or what the return needs does not start.
        """
        self.logs.mkdir(exist_ok=True)
        self._take_lock()
        try:
            self._start_service()
        finally:
            self.stop()

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
        """Return a client of this stack's service."""
        return Client(self.url, self.token, ca_file=self.ca_file)

    def _take_lock(self) -> None:
        lock = os.open(self.data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise LocalError(
                f"Headway already runs on {self.data}.",
                f"Use it, stop it with `headway down --data {self.data}`, or give another folder with --data.",
            ) from None
        self._lock = lock
        write_pid_file(self.data / _PID_FILE, os.getpid())

    def _start_service(self) -> str:
        """Start the stores and the API, without a scheduler, and return the token with which agents join."""
        end_left_over(self.logs)
        port = self._port if self._port is not None else free_port()
        host = HOST if self._reach is None else self._reach.address
        if not is_free(ANY_PORT, host):
            raise LocalError(
                f"{host} is no address of this machine.", "Give one that the nodes reach with --address."
            )
        if not is_free(port, host):
            raise LocalError(
                f"Port {port} is taken by another program.", "End that one, or choose another with --port."
            )
        self.url = url_of(self._reach, port)
        network = {} if self._reach is None else self._network(self._reach)
        self.token_is_new = not self.token_file.exists()
        self.token = _read_or_store(self.token_file, TOKEN_PREFIX + secrets.token_urlsafe(32))
        join_token = _kept_secret(self.join_token_file)
        redis_url = self._redis()
        service = {
            **os.environ,  # other settings, such as HEADWAY_LEASE_S, are passed on
            "HEADWAY_DATABASE_URL": self._database(),
            "HEADWAY_REDIS_URL": redis_url,
            "HEADWAY_STORAGE_URL": self._stores.storage_url or _folder_url(self.data / "storage"),
            "HEADWAY_JOIN_TOKEN": join_token,
            "HEADWAY_SECRETS_KEY": os.environ.get("HEADWAY_SECRETS_KEY")
            or _kept_secret(self.data / "secrets-key"),
            "HEADWAY_HOST": host,
            "HEADWAY_PORT": str(port),
            **network,
            **self._gate(redis_url),
            **({} if self._prices is None else {"HEADWAY_PRICES": self._prices}),
            **self._renting(),
            **self._settings,
        }
        self._prepare(service)
        self._run("api", Program([*_python("service"), "api"], service, self.logs / "api.log"), _Layer.API)
        self._wait_for("api", self._answers, "the API to answer")
        if self._reach is not None:
            kept = {name: text for name, text in os.environ.items() if _RENTAL_VARIABLE.match(name)}
            Rental(self._reach, port, kept).store(self.data)
            pilots = ReturnedMachines(service, self.logs / "return.log", self.data / _RENTAL_FILE)
            self._supervisor.add(f"machines of {self._reach.provider}", pilots, _Layer.AGENTS)
        self._service = service
        return join_token

    def _start_work(self, join_token: str) -> None:
        """Start the scheduler and the agents."""
        scheduler = Program([*_python("service"), "scheduler"], self._service, self.logs / "scheduler.log")
        self._run("scheduler", scheduler, _Layer.SCHEDULER)
        names = [f"local-{number}" for number in range(1, self._agents + 1)]
        leases = self._leases()
        for name in names:
            self._run(f"agent {name}", self._agent(name, join_token), _Layer.AGENTS)
        for name in names:
            joined = partial(self._has_joined, name, leases.get(name, 0.0))
            self._wait_for(f"agent {name}", joined, f"node {name} to join")
        self._wait_for("scheduler", self._leads, "a scheduler to lead")
        self._supervisor.start()
        (self.data / _READY_FILE).write_text(f"{os.getpid()} {self.url}", encoding="utf-8")

    def _database(self) -> str:
        if self._stores.database_url is not None:
            return self._stores.database_url
        _log.info("starting PostgreSQL")
        postgres = EmbeddedPostgres(self.data / "postgres")
        url = postgres.start()
        self._supervisor.add("PostgreSQL", postgres, _Layer.DATABASE)
        return url

    def _redis(self) -> str:
        if self._stores.redis_url is not None:
            return self._stores.redis_url
        _log.info("starting Redis")
        redis = EmbeddedRedis(self.data / "redis")
        url = redis.start()
        self._supervisor.add("Redis", redis, _Layer.QUEUE)
        return url

    def _network(self, reach: Reach) -> dict[str, str]:
        """Return the service settings with which other hosts reach it, and make its certificate."""
        from headway.local.certificates import identity  # noqa: PLC0415  # needs a package of the service

        proof = identity(self.data / "tls", reach.address, datetime.now(UTC))
        trusted = self.data / "tls" / "trusted.pem"
        theirs = os.environ.get(CA_FILE, "").strip()
        others = Path(theirs).read_text(encoding="utf-8") if theirs else ""
        write_private(trusted, proof.certificate.read_text(encoding="utf-8") + others)
        self.ca_file = str(proof.certificate)
        return {
            "HEADWAY_PROVIDERS": reach.provider,
            # Two stacks of one user must not share a name: each would end the machines of the other as orphans.
            "HEADWAY_CLUSTER": os.environ.get("HEADWAY_CLUSTER")
            or _read_or_store(self.data / "cluster-name", f"up-{secrets.token_hex(4)}"),
            "HEADWAY_PUBLIC_URL": self.url,
            "HEADWAY_TLS_CERT": str(proof.certificate),
            "HEADWAY_TLS_KEY": str(proof.key),
            CA_FILE: str(trusted),
        }

    def _gate(self, redis_url: str) -> dict[str, str]:
        """Open the embedded Redis to other hosts, by TLS, and return the setting with its URL for agents."""
        if self._reach is None or self._stores.redis_url is not None:
            return {}
        tls, file = self.data / "tls", self.data / "redis" / "gate-port"
        port = int(_read_or_store(file, str(free_port())))
        if not is_free(port, self._reach.address):
            port = free_port()
            write_private(file, str(port))
        inner = urlsplit(redis_url)
        files = [str(tls / "certificate.pem"), str(tls / "key.pem")]
        argv = [*_python("headway.local.gate"), self._reach.address, str(port), str(inner.port), *files]
        env = {name: value for name, value in os.environ.items() if name not in _SERVICE_ONLY}
        self._run("gate", Program(argv, env, self.logs / "gate.log"), _Layer.QUEUE)
        place = f"{self._reach.host}:{port}"
        url = urlunsplit(inner._replace(scheme="rediss", netloc=f":{inner.password}@{place}"))
        return {"HEADWAY_AGENT_REDIS_URL": url}

    def _prepare(self, env: Mapping[str, str]) -> None:
        """Migrate the database, and make our token the token of an admin."""
        _log.info("migrating the database")
        path = self.logs / "migrate.log"
        argv = [*_python("service"), "create-admin", "--migrate", "--token-stdin", _ADMIN]
        with spawn(argv, path, env=env, cwd=self.logs, stdin=subprocess.PIPE) as migration:
            migration.communicate(self.token.encode())
        if migration.returncode != 0:
            raise LocalError(
                f"The database migration failed:\n{last_lines(path)}",
                f"The log is {path}. If it is about a token: remove {self.token_file}, and start again for a new one.",
            )

    def _renting(self) -> dict[str, str]:
        """Return the service settings for renting machines on this one, and supervise those machines."""
        if self._rent is None:
            return {}
        read_offers(self._rent)  # report mistakes now instead of in a log
        self._supervisor.add("rented machines", self.machines, _Layer.AGENTS)
        return {
            "HEADWAY_PROVIDERS": "local",
            "HEADWAY_LOCAL_OFFERS": str(self._rent.expanduser().resolve()),
            "HEADWAY_LOCAL_MACHINES": str(self.machines.folder),
            "HEADWAY_PUBLIC_URL": self.url,
        }

    def _agent(self, name: str, join_token: str) -> Program:
        slots, kind = self.share.slots, self.share.device_kind
        address = HOST if self._reach is None else self._reach.address
        arguments = ["--address", address, *(["--slots", str(slots)] if slots is not None else [])]
        arguments += [] if kind is None else ["--device-kind", kind]
        env = {name: value for name, value in os.environ.items() if name not in _SERVICE_ONLY}
        env["HEADWAY_JOIN_TOKEN"] = join_token
        if self.ca_file is not None:
            env[CA_FILE] = str(self.data / "tls" / "trusted.pem")
        env["HEADWAY_PRIVATE"] = str(self.data)  # the folder holds the stores and every token
        return agent_program(
            name,
            self.url,
            state=self.data / "agents" / name,
            log=self.logs / f"agent-{name}.log",
            env=env,
            arguments=arguments,
            grace_s=_AGENT_GRACE_S,
        )

    def _run(self, name: str, program: Program, layer: _Layer) -> None:
        _log.info("starting %s", name)
        program.start()
        self.programs[name] = program
        self._supervisor.add(name, program, layer)

    def _wait_for(self, name: str, condition: Callable[[], bool], what: str) -> None:
        program = self.programs[name]
        _log.info("waiting for %s", what)
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
        with Client(self.url, self.token, patience_s=0, ca_file=self.ca_file) as client:
            try:
                return client.ready()
            except HeadwayError:
                return False

    def _leads(self) -> bool:
        """Return whether the scheduler leads, by the service's own diagnosis."""
        with self.client() as client:
            return all(one.level is Level.OK for one in client.diagnosis().checks if one.name == "scheduler")

    def _leases(self) -> dict[str, float]:
        """Return the end of each node's lease on this machine's clock, without LOST nodes."""
        with self.client() as client:
            return {
                node.name: time.time() + node.lease_remaining_s
                for node in client.nodes()
                if node.state is not NodeState.LOST
            }

    def _has_joined(self, node: str, lease_before: float) -> bool:
        """Return whether a node has reported to this stack.

        Its lease must end later than `lease_before`, because a node of the last run may still have a lease.
        """
        return self._leases().get(node, 0.0) > lease_before + _LEASE_NOISE_S


def running_url(data: Path, pid: int) -> str | None:
    """Return the URL of the service that process `pid` runs over a data folder, or None until it is up."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        up_pid, url = (data / _READY_FILE).read_text(encoding="utf-8").split()
        return url if up_pid == str(pid) else None
    return None


def stop_running(data: Path) -> bool:
    """Stop the stack that another process runs over a data folder, and wait until it is gone.

    Returns:
        False if no stack runs there.

    Raises:
        LocalError: the stack does not stop.
    """
    pid = read_pid_file(data.expanduser() / _PID_FILE)
    if pid is None:
        return False
    if not end(pid, (signal.SIGTERM,), _STOP_TIMEOUT_S):
        raise LocalError(
            f"Process {pid} does not stop.", f"See {data / 'logs'}, or end it with: kill -9 {pid}"
        )
    return True


def _kept_secret(file: Path) -> str:
    """Return the secret in a file, or store a new one there with access for this user only."""
    # Hexadecimal, because a leading dash would read as an option (--token -…).
    return _read_or_store(file, secrets.token_hex(32))


def _read_or_store(file: Path, secret: str) -> str:
    """Return the contents of a file, or store a secret there if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8").strip()
    write_private(file, secret + "\n")
    return secret


def _python(module: str) -> list[str]:
    """Return the command of a module of ours. `-P`: import nothing from the working folder."""
    return [sys.executable, "-P", "-u", "-m", module]


def _folder_url(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return folder.as_uri()
