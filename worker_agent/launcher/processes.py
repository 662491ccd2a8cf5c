"""What the kernel says about processes, and the few calls that Python does not wrap."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
_MOST_CAPABILITIES = 64
_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "ksh", "busybox"})
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `start_ticks` tells a process from a later one with its pid."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int


def die_with_parent() -> None:
    """Let the kernel send SIGKILL to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """From now on no program that this process executes gets more rights than it has: set-user-id bits are ignored."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Keep none of root's powers, nor let a program that is executed have them: root is then the owner of its files alone."""
    for capability in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel knows no more
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    if _libc.capset(header, bytes(24)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_dumpable(*, yes: bool) -> None:
    """Whether processes of the same user may trace this one and read its memory and environment."""
    _prctl(_PR_SET_DUMPABLE, int(yes))


def name_process(name: str) -> None:
    """What `ps` and `top` show instead of the launcher's name; 15 characters."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def boot_id() -> str:
    """Changes with every boot: pids of an earlier one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def thread_count() -> int:
    """Threads of this process, those that C libraries started included."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # names alone


def holds_device() -> bool:
    """Whether this process has a GPU open."""
    return any(target.startswith("/dev/nvidia") for target in _open_files())


def read(pid: int) -> Process | None:
    """The process with this id, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def table() -> list[Process]:
    """Every process that there is."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in map(read, pids) if process is not None]


def leftovers(groups: Collection[int], marker: str) -> list[Process]:
    """Living processes in one of these groups, or started with `marker` (`NAME=value`) in the environment.

    The marker finds what moved to a session of its own.
    """
    return [
        process
        for process in table()
        if process.state not in "ZX" and (process.group in groups or has_environment(process.pid, marker))
    ]


def of(pids: Iterable[int]) -> list[Process]:
    """Those of the processes that live."""
    found = [read(pid) for pid in pids]
    return [one for one in found if one is not None and one.state not in "ZX"]


def children_of(pid: int, uid: int | None) -> list[Process]:
    """Living children of a process that belong to this user; None: to whomever."""
    found = [one for one in table() if one.parent == pid and one.state not in "ZX"]
    return found if uid is None else [one for one in found if _user(one.pid) == uid]


def kill(process: Process) -> None:
    """SIGKILL, unless the pid belongs to another process by now."""
    send(process, signal.SIGKILL)


def send(process: Process, number: signal.Signals) -> None:
    """A signal, unless the pid belongs to another process by now."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            now = read(process.pid)
            if now is not None and now.start_ticks == process.start_ticks:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def catching(process: Process, number: signal.Signals) -> list[Process]:
    """The process if it has a handler for the signal, else its nearest descendants that have: a shell has none, but waits
    for its program.
    """
    if _handles(process.pid, number):
        return [process]
    return [one for pid in _children(process.pid) if (child := read(pid)) for one in catching(child, number)]


def cpu_s(pid: int) -> float:
    """Processor time of the process's main thread since its start; 0 once there is none."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waits_in(pid: int) -> str:
    """The kernel's function that the process waits in; empty where that is not told."""
    try:
        name = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return "" if name == "0" else name


def terminate(pid: int) -> None:
    """SIGTERM for a rank: to the process itself, or through a shell to what the shell waits for.

    A shell without a trap would die at once and leave its program without a chance to checkpoint.
    """
    children = _children(pid) if _is_shell(pid) and not _handles(pid, signal.SIGTERM) else []
    written = {_stream(child, 1) for child in children}
    # In `train | tee log` only the writer is asked: the reader ends with it, and its output still arrives.
    for child in [child for child in children if _stream(child, 0) not in written]:
        terminate(child)
    if not children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _children(pid: int) -> list[int]:
    return [process.pid for process in table() if process.parent == pid and process.state not in "ZX"]


def _stream(pid: int, descriptor: int) -> str:
    """The pipe behind a standard stream; a name of its own for anything else."""
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        target = ""
    return target if target.startswith("pipe:") else f"{pid}:{descriptor}"


def _user(pid: int) -> int | None:
    """The user that the process runs as: the owner of its files in /proc is another where it keeps others from tracing it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))


def _is_shell(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name in _SHELLS
    except OSError:
        return False


def _handles(pid: int, number: signal.Signals) -> bool:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def has_environment(pid: int, marker: str) -> bool:
    """Whether the process was started with `marker` (`NAME=value`) in its environment."""
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(entry.readlink())


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
