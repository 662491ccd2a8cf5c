"""Access to the kernel's process table, and to system calls that Python does not wrap."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
_MOST_CAPABILITIES = 64
_MOST_WALKS = 50
_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "ksh", "busybox"})
_ARG_START, _ARG_END = 48, 49
"""Fields of `/proc/PID/stat`, counted from 1: the addresses where the command line begins and ends."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """Entry of the process table. `start_ticks` tells a process from a later one with the same pid."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int


def die_with_parent() -> None:
    """Make the kernel send SIGKILL to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """Prevent executed programs from gaining rights: the kernel then ignores set-user-id bits."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all capabilities, also for executed programs: root then only has the rights of the owner of its files."""
    for capability in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel knows no further capabilities
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    _check(_libc.capset(header, bytes(24)))


def set_dumpable(*, yes: bool) -> None:
    """Allow or forbid processes of the same user to trace this one and read its memory and environment."""
    _prctl(_PR_SET_DUMPABLE, int(yes))


def name_process(name: str) -> None:
    """Set the process name that `ps` and `top` show; the kernel keeps 15 characters."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def title_process(title: str) -> None:
    """Replace the command line that `ps` shows by a title, which is cut to the room of the present command line.

    The kernel reads it from the memory of the process, which a forked process may overwrite as its own.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (_ARG_START, _ARG_END))
    if 0 < start < end:  # 0: the kernel does not say
        room = end - start
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def boot_id() -> str:
    """Return the id of the current boot. Pids recorded under another id are invalid."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def thread_count() -> int:
    """Return the number of threads of this process, including threads of C libraries."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # only the names are needed


def holds_device() -> bool:
    """Return True if this process has a GPU open."""
    return any(target.startswith("/dev/nvidia") for target in _open_files())


def read(pid: int) -> Process | None:
    """Return the process with this pid, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def leftovers(groups: Collection[int], markers: Collection[str]) -> list[Process]:
    """Return living processes in one of these groups, or with a marker (`NAME=value`) in their initial environment.

    The markers find processes that moved to another session.
    """
    return [
        process for process in _living() if process.group in groups or has_environment(process.pid, *markers)
    ]


def of(pids: Iterable[int]) -> list[Process]:
    """Return the living processes among these pids."""
    return [one for one in map(read, pids) if one is not None and one.state not in "ZX"]


def _living() -> list[Process]:
    """Return every living process in the process table."""
    return of(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def children_of(pid: int, uid: int | None) -> list[Process]:
    """Return living children of a process that belong to this user; None means any user."""
    return [one for one in _living() if one.parent == pid and uid in (None, _user(one.pid))]


def any_of(uid: int) -> bool:
    """Return True if a process of the host belongs to the user."""
    return bool(owned_by(uid))


def owned_by(uid: int) -> list[Process]:
    """Return the living processes of the host that belong to the user."""
    return [one for one in _living() if _user(one.pid) == uid]


def descends(pid: int, ancestor: int) -> bool:
    """Return True if `pid` is `ancestor` or a descendant of it. A process that no longer exists counts as one."""
    while pid not in {ancestor, 1}:
        process = read(pid)
        if process is None:
            return True
        if process.parent == 0:  # from outside of this container
            return False
        pid = process.parent
    return pid == ancestor


def kill(process: Process) -> None:
    """Send SIGKILL, unless the pid belongs to another process by now."""
    send(process, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process that adopts orphans and to all its descendants, whatever session they are in.

    They are stopped first, until none is new, so that none can start another one that is missed.
    """
    stopped: set[Process] = set()
    for _ in range(_MOST_WALKS):
        tree = {replace(one, state="") for one in _tree(pid)}
        if tree <= stopped:
            break
        for process in tree - stopped:
            send(process, signal.SIGSTOP)
        stopped |= tree
    for process in stopped:
        kill(process)


def _tree(pid: int) -> list[Process]:
    """Return a process and its descendants, those that live."""
    living = _living()
    found = [one for one in living if one.pid == pid]
    for one in found:  # the list grows
        found += [child for child in living if child.parent == one.pid]
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal, unless the pid belongs to another process by now."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            now = read(process.pid)
            if now is not None and now.start_ticks == process.start_ticks:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def catching(process: Process, number: signal.Signals) -> list[Process]:
    """Return the process if it handles the signal, else its nearest descendants that do.

    A shell has no handler, but waits for its program.
    """
    if _handles(process.pid, number):
        return [process]
    return [one for pid in _children(process.pid) if (child := read(pid)) for one in catching(child, number)]


def cpu_s(pid: int) -> float:
    """Return the processor time in seconds of the process's main thread; 0 if the process is gone."""
    try:
        fields = (
            Path(f"/proc/{pid}/task/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waits_in(pid: int) -> str:
    """Return the kernel function in which the process waits; empty if the kernel does not tell."""
    try:
        name = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "" if name == "0" else name


def terminate(pid: int) -> None:
    """Send SIGTERM to a rank, or to the children for which it waits if it is a shell.

    A shell without a trap would die at once, and its program could not save a checkpoint.
    """
    children = _children(pid) if _is_shell(pid) and not _handles(pid, signal.SIGTERM) else []
    written = {_stream(child, 1) for child in children}
    # In `train | tee log` only the writer gets the signal: the reader ends with it, and its output still
    # arrives.
    for child in [child for child in children if _stream(child, 0) not in written]:
        terminate(child)
    if not children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _children(pid: int) -> list[int]:
    return [process.pid for process in _living() if process.parent == pid]


def _stream(pid: int, descriptor: int) -> str:
    """Return the pipe behind a standard stream, or a unique name for anything else."""
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        target = ""
    return target if target.startswith("pipe:") else f"{pid}:{descriptor}"


def _user(pid: int) -> int | None:
    """Return the effective user of the process, or None if it is gone.

    The owner of its files in /proc is a different user if the process is not dumpable.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
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
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next(line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def has_environment(pid: int, *markers: str) -> bool:
    """Return True if the process was started with one of the markers (`NAME=value`) in its environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(marker.encode() in variables for marker in markers)


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(entry.readlink())


def _prctl(option: int, value: int | bytes) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
