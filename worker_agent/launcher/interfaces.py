"""Test program that tries, inside the confinement of a job, the kernel's interfaces and other processes.

    python -P worker_agent/launcher/interfaces.py TARGETS

`TARGETS` is a JSON object: `processes` maps names to ids of processes that the job must not reach, and `numbers` maps
system calls to their numbers on this machine. The program prints a JSON object that
maps each kind of probe to its probes, and each probe to true if it is open. It imports only the standard library and nothing
of Headway, like any job's script.

Every probe is harmless where it is open, even for root in its own folder: the call gets an argument that it refuses after it
has checked the permission (no file, no address, a folder that is no mount), or its effect ends with the child process.
"""

import ctypes
import errno
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Probe = Callable[[], object]
DENIED = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ESRCH, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}
    | {errno.ESOCKTNOSUPPORT}
)
"""Errors of a call that is not permitted, or that this kernel does not have. With any other, the kernel began to serve it."""
_libc = ctypes.CDLL(None, use_errno=True)
_AT_CWD = -100
_OWN_KEYS = -2
_TRACE_ME, _SEIZE = 0, 0x4206
"""PTRACE_TRACEME and PTRACE_SEIZE."""
_PIDFD_SEND_SIGNAL, _PIDFD_GETFD = 424, 438
"""Numbers of system calls, the same on every architecture."""
_MEMORY = ctypes.create_string_buffer(b"headway", 64)
_NAMESPACES = {
    "user": 0x10000000, "mount": 0x20000, "network": 0x40000000, "process": 0x20000000, "IPC": 0x8000000,
    "UTS": 0x4000000, "control group": 0x2000000, "time": 0x80,
}  # fmt: skip


def _call(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def _kernel(numbers: Mapping[str, int]) -> dict[str, Probe]:
    """Return the probes of the kernel's own interfaces. Each argument is what the call needs to check the permission first."""
    handle = struct.pack("Ii8s", 8, 1, b"")
    map_of_one = struct.pack("IIIII", 2, 4, 4, 1, 0) + bytes(100)
    counter = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6) + bytes(64)
    no_file = _long(-1)
    arguments: dict[str, tuple[object, ...]] = {
        "mount": (b"none", b"/", b"headway-none", _long(0), None),
        "umount2": (b"/proc/self", _long(0)),
        "pivot_root": (b"/proc/self", b"/proc/self"),
        "chroot": (b"/",),
        "open_tree": (_long(_AT_CWD), b".", _long(1)),
        "move_mount": (no_file, b"", no_file, b"", _long(0)),
        "fsopen": (b"headway-none", _long(0)),
        "fsmount": (no_file, _long(0), _long(0)),
        "fspick": (_long(_AT_CWD), b".", _long(0)),
        "mount_setattr": (_long(_AT_CWD), b".", _long(0), bytes(32), _long(32)),
        "ptrace": (_long(_TRACE_ME), None, None, None),
        "bpf": (_long(0), map_of_one, _long(len(map_of_one))),
        "add_key": (b"user", b"headway-probe", b"x", _long(1), _long(_OWN_KEYS)),
        "request_key": (b"user", b"headway-probe", None, _long(0)),
        "keyctl": (_long(0), _long(_OWN_KEYS), _long(0)),
        "kexec_load": (_long(0), _long(1 << 20), None, _long(0)),
        "kexec_file_load": (no_file, no_file, _long(0), None, _long(0xFFFFFFFF)),
        "userfaultfd": (_long(1),),
        "perf_event_open": (counter, _long(0), no_file, no_file, _long(0)),
        "init_module": (None, _long(0), b""),
        "finit_module": (no_file, b"", _long(0)),
        "delete_module": (b"headway_none", _long(os.O_NONBLOCK)),
        "io_uring_setup": (_long(1), ctypes.create_string_buffer(120)),
        "swapon": (b"/headway-none", _long(0)),
        "swapoff": (b"/headway-none",),
        "reboot": (_long(0), _long(0), _long(0), None),
        "settimeofday": (None, None),
        "acct": (b"/headway-none",),
        "syslog": (_long(3), None, _long(0)),
        "sethostname": (b"x", _long(1000)),
        "setdomainname": (b"x", _long(1000)),
        "ioperm": (_long(0x80), _long(1), _long(1)),
        "iopl": (_long(3),),
    }
    found: dict[str, Probe] = {
        name: lambda name=name: _call(numbers[name], *arguments[name])  # type: ignore[misc]
        for name in arguments
        if name in numbers
    }

    def open_by_handle() -> None:
        folder = os.open(".", os.O_RDONLY)
        _call(numbers["open_by_handle_at"], _long(folder), handle, _long(0))

    def enter_namespace() -> None:
        _call(numbers["setns"], _long(os.open("/proc/self/ns/uts", os.O_RDONLY)), _long(0x4000000))

    def clone_user() -> None:
        if _call(numbers["clone"], _long(0x10000000 | 17), None, None, None, None) == 0:
            os._exit(0)

    def clone3_user() -> None:
        if (
            _call(numbers["clone3"], struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0), _long(64))
            == 0
        ):
            os._exit(0)

    found |= {"open_by_handle_at": open_by_handle, "setns": enter_namespace}
    found |= {"clone of a user namespace": clone_user, "clone3 of a user namespace": clone3_user}
    for name, flag in _NAMESPACES.items():
        found[f"unshare {name} namespace"] = lambda flag=flag: _call(numbers["unshare"], _long(flag))  # type: ignore[misc]
    for path in ("/dev/mem", "/dev/port", "/proc/kcore"):
        found[f"read {path}"] = lambda path=path: _open(path, os.O_RDONLY)  # type: ignore[misc]
    return found


def _open(path: str, flags: int) -> None:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        raise PermissionError(errno.EPERM, "") from None  # the host has none


def _sockets() -> dict[str, Probe]:
    """Return the probes of sockets that see or forge packets of others, or reach the kernel's ciphers."""
    kinds = {
        "raw IPv4": (2, 3, 1),
        "raw IPv4 of any protocol": (2, 3, 255),
        "raw IPv6": (10, 3, 58),
        "packets, raw": (17, 3, 0x300),
        "packets, cooked": (17, 2, 0x300),
        "packets of old programs": (2, 10, 0x300),
        "XDP": (44, 3, 0),
        "ciphers of the kernel": (38, 5, 0),
    }
    return {
        name: lambda kind=kind: socket.socket(*kind).close()  # type: ignore[misc]
        for name, kind in kinds.items()
    }


def _copy(name: str, pid: int) -> None:
    """Copy one byte between this process and address 0 of another, where no process has memory."""
    here, there = (struct.pack("PN", address, 1) for address in (ctypes.addressof(_MEMORY), 0))
    _check(getattr(_libc, name)(_long(pid), here, _long(1), there, _long(1), _long(0)))


def _limit(pid: int) -> None:
    """Set a limit of another process to what it is."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE))


def _of_process(who: str, pid: int, numbers: Mapping[str, int]) -> dict[str, dict[str, Probe]]:
    """Return the probes of another process, by kind."""
    own = {"environ": "environment", "maps": "map of memory", "mem": "memory", "auxv": "start data"}

    def take_file() -> None:
        process = os.pidfd_open(pid)
        _call(_PIDFD_GETFD, _long(process), _long(0), _long(0))

    return {
        "memory": {
            **{f"{what} of {who}": lambda name=name: _open_read(f"/proc/{pid}/{name}") for name, what in own.items()},  # type: ignore[misc]
            f"read memory of {who} by a call": lambda: _copy("process_vm_readv", pid),
            f"write memory of {who} by a call": lambda: _copy("process_vm_writev", pid),
        },
        "processes": {
            f"trace {who}": lambda: _call(numbers["ptrace"], _long(_SEIZE), _long(pid), None, None),
            f"take a file of {who}": take_file,
            f"see a file of {who}": lambda: Path(f"/proc/{pid}/fd/0").readlink(),
            f"count files of {who}": lambda: list(Path(f"/proc/{pid}/fd").iterdir()),
            f"look through the root of {who}": lambda: list(Path(f"/proc/{pid}/root/").iterdir()),
            f"look through the folder of {who}": lambda: list(Path(f"/proc/{pid}/cwd/").iterdir()),
            f"set limits of {who}": lambda: _limit(pid),
        },
        "signals": {
            f"signal {who}": lambda: os.kill(pid, 0),
            f"signal {who} by its handle": lambda: _call(_PIDFD_SEND_SIGNAL, _long(os.pidfd_open(pid)), _long(0), None, _long(0)),
            f"signal the group of {who}": lambda: os.killpg(os.getpgid(pid), 0),
        },
    }  # fmt: skip


def _open_read(path: str) -> None:
    """Open another process's file; `mem` counts as open without a read, as any address may be none."""
    descriptor = os.open(path, os.O_RDONLY)
    if not path.endswith("/mem"):
        os.read(descriptor, 1)


def _is_open(probe: Probe) -> bool:
    """Return True unless the probe is denied. A child process runs it, and one that dies counts as open."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            probe()
        except OSError as error:
            code = int(error.errno in DENIED)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1


def main() -> None:
    """Try every probe, and print the outcome by kind."""
    targets = json.loads(sys.argv[1])
    numbers = targets["numbers"]
    probes: dict[str, dict[str, Probe]] = {
        "kernel": _kernel(numbers),
        "sockets": _sockets(),
        "memory": {},
        "processes": {},
        "signals": {},
    }
    for who, pid in targets["processes"].items():
        for kind, some in _of_process(who, pid, numbers).items():
            probes[kind] |= some
    found = {kind: {name: _is_open(probe) for name, probe in some.items()} for kind, some in probes.items()}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
