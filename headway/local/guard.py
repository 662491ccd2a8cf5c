"""A guard process that ends all processes of its starter once the starter is gone.

A process that is killed cannot clean up after itself. The guard reads a pipe from its starter, which closes
when the starter ends. It then kills every process that carries the starter's mark in its environment.

Some processes lose the mark: a server that sets its title overwrites its environment, and a launcher, of which
ranks are forks, gets a new environment. Therefore the guard also kills every process that works in one of the
starter's temporary folders or names one on its command line. Last, it removes the folders.

The guard runs this file as a script, so the file imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "HEADWAY_GUARD"
"""Environment variable that marks the processes of one starter. All descendants inherit it."""
_PATIENCE_S = 180.0
"""Time limit for killing processes. A process in the middle of a disk write dies late."""
_LOOK_EVERY_S = 0.5
_PAUSE_S = 0.05
_DATABASE_S = 5.0
_REMOVE = "remove "
_WATCH = "watch "
_KEEP = "keep "


class Guard:
    """A guard that marks all processes started while it is open, and kills them if this process dies first.

        with Guard() as guard:
            folder = guard.temporary_folder()

    Leaving the block ends the guard process. The code in the block stops its child processes before that.

    Args:
        env: environment of the child processes; it carries the mark while the guard is open.
    """

    def __init__(self, env: MutableMapping[str, str] = os.environ) -> None:
        self._env = env
        self._outer = env.get(MARK)
        self.mark = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The guard process carries no mark, so that the guard of an outer starter does not end it.
        env = {name: value for name, value in self._env.items() if name != MARK}
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, self.mark, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,  # Ctrl-C reaches the starter alone
        )
        self._env[MARK] = self.mark
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if self._outer is None:
            self._env.pop(MARK, None)
        else:
            self._env[MARK] = self._outer
        if process is not None:
            process.kill()
            process.communicate()

    def watch(self, folder: Path) -> None:
        """Make the guard kill every process that works in a folder or names it, if this process dies first.

        The guard does not remove the folder.
        """
        self._send(f"{_WATCH}{folder.resolve()}")

    @contextlib.contextmanager
    def temporary_folder(self, prefix: str = "headway-") -> Iterator[Path]:
        """Create a folder that is removed after the block, and also if this process is killed."""
        folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
        self._send(f"{_REMOVE}{folder}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._send(f"{_KEEP}{folder}")  # its name may be used again

    def _send(self, line: str) -> None:
        assert self._process is not None, "the guard is open"
        assert self._process.stdin is not None, "it was made with a pipe"
        with contextlib.suppress(BrokenPipeError):  # the guard was killed: its starter continues without it
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def processes_of(mark: str, folders: Sequence[str]) -> list[int]:
    """Return the ids of all processes of a starter, except this process."""
    names = "|".join([f"{MARK}={mark}", *(re.escape(folder) for folder in folders)])
    named = re.compile(
        os.fsencode(f"(?:{names})") + rb"(?=[/\0 ]|$)"
    )  # no longer name that begins with one of these
    if Path("/proc/self/environ").exists():
        known = ((int(one.name), _about(one)) for one in Path("/proc").iterdir() if one.name.isdigit())
    else:
        shown = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False)
        known = ((int(line.split(None, 1)[0]), line) for line in shown.stdout.splitlines())
    return [pid for pid, about in known if pid != os.getpid() and named.search(about)]


def _about(process: Path) -> bytes:
    """Return the command line, working folder and environment of a process.

    The result is empty for a process that has ended or belongs to another user. A forked process has the
    command line and the environment that its parent had at its start.
    """
    found = b""
    with contextlib.suppress(OSError):
        if (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[
            0
        ] == "Z":
            return b""
        found += (process / "cmdline").read_bytes()
        found += os.fsencode((process / "cwd").readlink()) + b"\0"
        found += (process / "environ").read_bytes()
    return found


def _is_database(pid: int) -> bool:
    """Return whether a process is a PostgreSQL server, which leaves shared memory behind if it is killed."""
    try:
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name == "postgres"
    except OSError:
        return False


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_all(mark: str, temporary: Sequence[str], watched: Sequence[str]) -> bool:
    """Kill all processes of a starter, repeatedly until none is left. Return whether none is left.

    In a watched folder, only processes that the first search finds are killed, because a successor of the
    starter may soon work there. PostgreSQL first gets SIGQUIT, and SIGKILL later.
    """
    began_s = time.monotonic()
    pids = processes_of(mark, [*temporary, *watched])
    while pids:
        waited_s = time.monotonic() - began_s
        if waited_s > _PATIENCE_S:
            return False
        for pid in pids:
            gently = waited_s < _DATABASE_S and _is_database(pid)
            _send_signal(pid, signal.SIGQUIT if gently else signal.SIGKILL)
        time.sleep(_PAUSE_S)
        left = set(pids).intersection(processes_of(mark, watched)) if watched else set()
        pids = sorted(left.union(processes_of(mark, temporary)))
    return True


def _unmount_in(folder: str) -> None:
    """Unmount file systems that root has mounted below a folder."""
    with contextlib.suppress(OSError):
        points = [
            line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        ]
        for point in points:
            if point.startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _wait_for_end(starter: int) -> dict[str, bool]:
    """Wait until the starter is gone. Return its folders, each with True if it is to be removed.

    The pipe closes at once unless a fork of the starter holds it as well. In that case the parent's process
    id changes.
    """
    received = b""
    os.set_blocking(0, False)
    while os.getppid() == starter:
        if not select.select([0], [], [], _LOOK_EVERY_S)[0]:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        received += piece
    # A starter that is killed early may have written more than was read.
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(0, 1 << 16):
            received += piece
    folders: dict[str, bool] = {}
    for line in received.decode(errors="surrogateescape").splitlines():
        word, _, folder = line.partition(" ")
        if f"{word} " == _KEEP:
            folders.pop(folder, None)
        else:
            folders[folder] = f"{word} " == _REMOVE
    return folders


def main() -> None:
    """Run the guard process: `guard.py MARK PID`, with the pipe from the starter as standard input."""
    mark, starter = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the guard ends after its starter
    folders = _wait_for_end(starter)
    temporary = [folder for folder, remove in folders.items() if remove]
    gone = kill_all(mark, temporary, [folder for folder in folders if folder not in temporary])
    for folder in temporary:
        _unmount_in(folder)
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if gone else 1)


if __name__ == "__main__":
    main()
