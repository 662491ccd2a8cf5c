"""The service's side of the boundary for tests of the agent: HTTP that records, Redis that delivers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import redis

from headway.contract.agents import (
    COMMAND_FIELD,
    AnyCommand,
    AnyEntry,
    Holding,
    JoinReply,
    JoinRequest,
    RankExited,
    RankMessage,
    RankSlot,
    RanksStarted,
    Released,
    ReportReply,
    ReportRequest,
    RunCommand,
    StartFailed,
    StopCommand,
)
from headway.contract.credentials import NodeCredentials, SecretsReply, SecretsRequest, StorageAccess
from headway.contract.executions import ExecutionReply, ExecutionReport
from tests.integration.agent.looking import WAIT_S, end_all

T = TypeVar("T", bound=AnyEntry)
JOIN_TOKEN = "join-me"


class StubService:
    """Records what an agent says. `wait_for` waits for it to have said something."""

    def __init__(self, redis_url: str) -> None:
        self.redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self.redis_url = redis_url
        self.stream = f"node:{os.urandom(4).hex()}"
        self.lease_s = 30.0
        self.report_every_s = 1.0
        self.refuse_join: tuple[int, str] | None = None
        self.node_token = "node-token"
        self.joined_with: list[str] = []
        """The tokens that were shown for joining, taken or not."""
        self.renew_credentials_s = 86_400.0
        self.renewed = 0
        self.renewed_redis_url = redis_url
        self.answering = True
        self.stop: list[Holding] = []
        self.probe: list[int] = []
        self.joins: list[JoinRequest] = []
        self.reports: list[ReportRequest] = []
        self.entries: list[Any] = []
        self.logs: dict[tuple[str, int, int], bytearray] = {}
        self.left_out: dict[tuple[str, int, int], int] = {}
        """How many bytes of each log its agent left out, and said so."""
        self.bundles: dict[str, bytes] = {}
        self.bundle_requests = 0
        self.secrets: dict[str, dict[str, str]] = {}
        """By job. One that is not here is refused."""
        self.secret_requests: list[SecretsRequest] = []
        self.executions: list[ExecutionReport] = []
        """Reports about commands beside ranks."""
        self.cancelled: set[str] = set()
        """Ids of commands beside ranks that their user has cancelled."""
        self.changed = threading.Condition()
        self._commands = 0
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.redis.close()

    def wait_for(self, what: Callable[[], T | None], timeout_s: float = WAIT_S) -> T:
        """The first truthy value of `what`, asked again whenever the agent said something."""
        with self.changed:
            value = None

            def found() -> bool:
                nonlocal value
                value = what()
                return bool(value)

            assert self.changed.wait_for(found, timeout_s), self._story()
            assert value is not None
            return value

    def push(self, command: AnyCommand) -> None:
        self.redis.xadd(self.stream, {COMMAND_FIELD: command.model_dump_json()})

    def run(self, job: str, run: str, **fields: Any) -> RunCommand:
        """Push a run; the fields are those of `run_command`."""
        command = self.run_command(job, run, **fields)
        self.push(command)
        return command

    def run_command(
        self, job: str, run: str, *, ranks: int = 1, first_slot: int = 0, **fields: Any
    ) -> RunCommand:
        """A run of `ranks` ranks on the slots from `first_slot` on, or with `slots`, of each rank."""
        slots = fields.pop("slots", {rank: first_slot + rank for rank in range(ranks)})
        defaults: dict[str, Any] = {
            "command_id": self.command_id(),
            "job_id": job,
            "job_name": job,
            "generation": 1,
            "attempt": 1,
            "restart_count": 0,
            "run": run,
            "bundle": None,
            "env": {},
            "ranks": [
                RankSlot(rank=rank, local_rank=local, slot=slot)
                for local, (rank, slot) in enumerate(slots.items())
            ],
            "world_size": len(slots),
            "node_rank": 0,
            "node_count": 1,
            "master_addr": "127.0.0.1",
            "master_port": self.joins[-1].first_port,
            "hosts_store": True,
            "global_batch": 64,
            "checkpoint_uri": "file:///proc/nowhere",
            "checkpoint_every_s": None,
            "checkpoint_keep": 3,
            "grace_s": 10.0,
        }
        return RunCommand(**{**defaults, **fields})

    def send_stop(self, job: str, *, generation: int = 1, **fields: Any) -> StopCommand:
        """Push a stop, of mode checkpoint unless the fields say otherwise."""
        defaults: dict[str, Any] = {"mode": "checkpoint", "grace_s": 20.0}
        command = StopCommand(
            command_id=self.command_id(), job_id=job, generation=generation, **{**defaults, **fields}
        )
        self.push(command)
        return command

    def acknowledged(self, command: AnyCommand) -> None:
        """Wait until the agent has taken it up."""
        self.wait_for(lambda: any(command.command_id in report.acknowledged for report in self.reports))

    def add_bundle(self, files: dict[str, str], *, mode: int = 0o644) -> str:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(text.encode()), mode
                tar.addfile(member, io.BytesIO(text.encode()))
        digest = f"sha256:{hashlib.sha256(data.getvalue()).hexdigest()}"
        self.bundles[digest] = data.getvalue()
        return digest

    def of(self, job: str, kind: type[T], generation: int | None = None) -> list[T]:
        """Entries of a kind about a job, in the order of their arrival."""
        return [
            entry
            for entry in self.entries
            if isinstance(entry, kind) and entry.job_id == job and generation in (None, entry.generation)
        ]

    def started(self, job: str, generation: int = 1) -> RanksStarted:
        return self.wait_for(lambda: next(iter(self.of(job, RanksStarted, generation)), None))

    def start_failed(self, job: str, generation: int = 1) -> StartFailed:
        return self.wait_for(lambda: next(iter(self.of(job, StartFailed, generation)), None))

    def released(self, job: str, generation: int = 1) -> Released:
        return self.wait_for(lambda: next(iter(self.of(job, Released, generation)), None))

    def exits(self, job: str, generation: int = 1) -> dict[int, RankExited]:
        """How the ranks ended, once the generation is released; each was reported once."""
        self.released(job, generation)
        entries = self.of(job, RankExited, generation)
        assert len({entry.rank for entry in entries}) == len(entries)
        return {entry.rank: entry for entry in entries}

    def messages(self, job: str) -> list[dict[str, Any]]:
        return [entry.message for entry in self.of(job, RankMessage)]

    def log(self, job: str, rank: int = 0, generation: int = 1) -> str:
        with self.changed:
            return bytes(self.logs.get((job, generation, rank), b"")).decode()

    def wait_log(self, job: str, text: str, rank: int = 0, generation: int = 1) -> str:
        return self.wait_for(
            lambda: log if text in (log := self.log(job, rank, generation)) else None,
        )

    def _story(self) -> str:
        return "never happened; last: " + " ".join(
            f"{e.kind}:{getattr(e, 'job_id', '')}/{getattr(e, 'generation', '')}" for e in self.entries[-8:]
        )

    def command_id(self) -> str:
        self._commands += 1
        return f"command-{self._commands}"


class _Handler(BaseHTTPRequestHandler):
    stub: StubService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionResetError):  # an agent was killed
            super().handle()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        names = parts.path.removeprefix("/api/v1/").split("/")
        with self.stub.changed:
            if not self.stub.answering:
                self._problem(503, "database is down")
            elif names == ["agents"]:
                self._join(body)
            elif self.headers["Authorization"] != f"Bearer {self.stub.node_token}":
                self._problem(401, "wrong node token")
            elif names[2] == "reports":
                self._report(body)
            elif names[2] == "credentials":
                self._renew()
            elif names[2] == "storage":
                self._answer(200, StorageAccess().model_dump_json().encode())
            elif names[2] == "secrets":
                self._give_secrets(SecretsRequest.model_validate_json(body))
            elif names[2] == "executions":
                self.stub.executions.append(ExecutionReport.model_validate_json(body))
                reply = ExecutionReply(cancelled=names[3] in self.stub.cancelled)
                self._answer(200, reply.model_dump_json().encode())
            else:
                offset = int(parse_qs(parts.query)["offset"][0])
                self._append((names[3], int(names[4]), int(names[5])), offset, body)
                self._answer(204, b"")
            self.stub.changed.notify_all()

    def do_GET(self) -> None:
        digest = self.path.rpartition("/")[2]
        self.stub.bundle_requests += 1
        data = self.stub.bundles.get(digest)
        if data is None:
            self._problem(404, "no such bundle")
        else:
            self._answer(200, data)

    def _append(self, stream: tuple[str, int, int], offset: int, body: bytes) -> None:
        log = self.stub.logs.setdefault(stream, bytearray())
        offset -= self.stub.left_out.get(stream, 0)
        if offset > len(log):
            assert b"bytes are missing here" in log[-100:], "a hole in a log"
            self.stub.left_out[stream] = self.stub.left_out.get(stream, 0) + offset - len(log)
            offset = len(log)
        log[offset : offset + len(body)] = body

    def _join(self, body: bytes) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.stub.joined_with.append(token)
        if token not in {JOIN_TOKEN, self.stub.node_token}:
            return self._problem(401, "the join token is wrong")
        if self.stub.refuse_join is not None:
            return self._problem(*self.stub.refuse_join)
        self.stub.joins.append(JoinRequest.model_validate_json(body))
        reply = JoinReply(
            node_id="node-1",
            node_token=self.stub.node_token,
            redis_url=self.stub.redis_url,
            stream=self.stub.stream,
            lease_s=self.stub.lease_s,
            report_every_s=self.stub.report_every_s,
            renew_credentials_s=self.stub.renew_credentials_s,
        )
        return self._answer(201, reply.model_dump_json().encode())

    def _renew(self) -> None:
        self.stub.renewed += 1
        self.stub.node_token = f"node-token-{self.stub.renewed}"
        fresh = NodeCredentials(node_token=self.stub.node_token, redis_url=self.stub.renewed_redis_url)
        self._answer(200, fresh.model_dump_json().encode())

    def _give_secrets(self, wanted: SecretsRequest) -> None:
        self.stub.secret_requests.append(wanted)
        env = self.stub.secrets.get(wanted.job_id)
        if env is None:
            return self._problem(404, "project default has no secret named key any more")
        return self._answer(200, SecretsReply.model_validate({"env": env}).model_dump_json().encode())

    def _report(self, body: bytes) -> None:
        request = ReportRequest.model_validate_json(body)
        self.stub.reports.append(request)
        known = {entry.sequence for entry in self.stub.entries}
        self.stub.entries += [entry for entry in request.entries if entry.sequence not in known]
        reply = ReportReply(lease_s=self.stub.lease_s, stop=self.stub.stop, probe=self.stub.probe)
        self._answer(200, reply.model_dump_json().encode())

    def _problem(self, status: int, detail: str) -> None:
        self._answer(status, json.dumps({"code": "x", "detail": detail}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


class AgentProcess:
    """A real agent in a process of its own."""

    def __init__(self, url: str, state: Path, *extra: str, slots: int = 2, token: str = JOIN_TOKEN) -> None:
        self.state = state
        self.before: tuple[str, ...] = ()  # a program that starts it, with its arguments
        self.env = {**os.environ, "HEADWAY_TOKEN": "secret-api-token", "HEADWAY_ISOLATION": ""}
        self._arguments = [
            "--url",
            url,
            *(["--token", token] if token else []),
            "--name",
            "node-a",
            "--state-dir",
            str(state),
        ]
        self._arguments += ["--slots", str(slots), "--device-kind", "cpu", "--address", "127.0.0.1", *extra]
        self._process: subprocess.Popen[bytes] | None = None
        self.imports: Path | None = None
        """Where it imports its own package from, when that is not this checkout."""
        self.log_path = state.parent / f"{state.name}.log"

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "worker_agent", *self._arguments],
                env=self.env,
                cwd=self.imports,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: the agent has no chance to say or save anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self, timeout_s: float = WAIT_S) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def log(self) -> str:
        return self.log_path.read_text()

    def clean_up(self) -> None:
        """End the agent and its launcher, which takes the ranks along."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        end_all(self.state)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree((self.state / "scratch").readlink(), ignore_errors=True)


@contextlib.contextmanager
def service(redis_url: str) -> Iterator[StubService]:
    stub = StubService(redis_url)
    try:
        yield stub
    finally:
        stub.close()
