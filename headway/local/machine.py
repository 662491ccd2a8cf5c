"""`python -m headway.local.machine FOLDER`: a process that simulates a rented machine.

The process boots for as long as its offer says. It then starts an agent, which joins with the token in
HEADWAY_JOIN_TOKEN, and serves the metadata that announces an interruption to the agent. It ends together with
everything that ran on it. It runs in a session of its own, so that a restart of the service does not end it:
only its provider, an interruption or SIGTERM does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from headway.errors import HeadwayError
from headway.local.ports import HOST
from headway.local.processes import limit_log, spawn, write_pid_file
from headway.local.rented import MachineFolder, read_offers

_LOOK_EVERY_S = 0.1
_AGENT_GRACE_S = 15.0
_SET_CHILD_SUBREAPER = 36
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path


class Metadata:
    """The machine's metadata service, with the paths of EC2.

    It answers 404 until an interruption is announced.
    """

    def __init__(self) -> None:
        self.reclaim_at: datetime | None = None
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at = metadata.reclaim_at
                if self.path != _ACTION_PATH or at is None:
                    self._answer(404, b"")
                    return
                action = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
                self._answer(200, json.dumps(action).encode())

            def do_PUT(self) -> None:
                known = self.path == _TOKEN_PATH
                self._answer(200 if known else 404, b"token" if known else b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                """Ignore the request, which arrives twice a second."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the metadata service for agents."""
        return f"http://{HOST}:{self._server.server_port}"


class Host:
    """The machine, while it is on."""

    def __init__(self, folder: MachineFolder, token: str) -> None:
        lease = folder.lease
        if lease is None:
            raise HeadwayError(
                f"{folder.path} has no lease.json.", "Machines are launched by their provider."
            )
        self._folder, self._lease, self._token = folder, lease, token
        self._metadata = Metadata()
        self._agent: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._reclaim_at: datetime | None = None

    def run(self) -> None:
        """Run the machine until it ends."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        booted_s = time.monotonic() + self._lease.launch_delay_s
        while not self._stop.wait(_LOOK_EVERY_S) and self._folder.ended() is None:
            self._folder.pid_file.touch()  # marks the time of the end in case this process is killed
            self._check_for_interruption()
            limit_log(self._folder.path / "agent.log")
            if self._reclaim_at is not None and datetime.now(UTC) >= self._reclaim_at:
                self._end("its provider took it away")
                return
            if self._agent is None and self._lease.joins and time.monotonic() >= booted_s:
                self._agent = self._start_agent()
        if self._agent is not None:
            self._agent.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # killed with the rest
                self._agent.wait(_AGENT_GRACE_S)
        self._end("it was given back")

    def _check_for_interruption(self) -> None:
        if self._reclaim_at is not None:
            return
        try:
            offers = read_offers(Path(self._lease.offers))
        except HeadwayError:
            return  # a user is editing the file; the service reports the error
        mine = [one for one in offers.interruptions if one.machine == self._lease.external_id]
        if mine:
            notice_s = min(one.notice_s for one in mine)
            self._reclaim_at = datetime.now(UTC) + timedelta(seconds=notice_s)
            self._metadata.reclaim_at = self._reclaim_at if notice_s > 0 else None

    def _start_agent(self) -> subprocess.Popen[bytes]:
        lease = self._lease
        argv = [sys.executable, "-P", "-u", "-m", "worker_agent", "--url", lease.url]
        argv += ["--name", lease.node_name, "--address", HOST, "--own-jobs", "--slots", str(lease.slots)]
        argv += ["--device-kind", lease.device_kind, "--state-dir", str(self._folder.path / "agent")]
        env = {name: value for name, value in os.environ.items() if name != "HEADWAY_TOKEN"}
        env |= {"HEADWAY_JOIN_TOKEN": self._token, "HEADWAY_METADATA_URL": self._metadata.url}
        return spawn(argv, self._folder.path / "agent.log", env=env, cwd=self._folder.path)

    def _end(self, message: str) -> None:
        kill_descendants()
        self._folder.note_end(datetime.now(UTC), message)


def kill_descendants() -> None:
    """Kill everything that descends from this process with SIGKILL, until nothing is left.

    A machine that is off runs nothing.
    """
    while children := descendants(os.getpid()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        time.sleep(_LOOK_EVERY_S / 10)


def descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of `root`. Orphans belong to `root`, which is a subreaper."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: list[int] = []
    around = {root}
    while around:
        around = {pid for pid, parent in parents.items() if parent in around}
        found += sorted(around)
    return found


def main(argv: list[str]) -> int:
    """Run the machine of a folder. A second process for the same folder ends at once."""
    folder = MachineFolder(Path(argv[0]))
    os.chdir(folder.path)  # no module of the starting folder may shadow one of ours
    lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    if folder.ended() is not None:
        return 0
    write_pid_file(folder.pid_file, os.getpid())
    try:
        Host(folder, os.environ.pop("HEADWAY_JOIN_TOKEN", "")).run()
    except HeadwayError as error:
        sys.stderr.write(f"headway machine: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
