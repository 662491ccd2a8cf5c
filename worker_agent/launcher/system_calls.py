"""Filter of system calls (seccomp) for ranks: calls that training does not need, and that attacks on the kernel or on other processes do.

A denied call fails with EPERM, so programs that only try one go on. The filter is inherited by every descendant, and no
process can remove it. It needs `forbid_new_privileges`, or CAP_SYS_ADMIN.

A wrong denial ends training, so a call that libraries of training make is not on the list even if few do:
`process_vm_readv` copies between ranks in UCX and Open MPI, which abort on EPERM, and the kernel checks it as it
checks `ptrace`. `pidfd_getfd` shares memory of GPUs between processes, and `io_submit` reads ahead of training.

The kernel runs the filter as a program of classic BPF over a `struct seccomp_data`: the number of the call, the
architecture, and its arguments of 64 bits. Numbers are those of <asm/unistd.h> and <linux/seccomp.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SET_FILTER = 1
_SPEC_ALLOW = 1 << 2
"""Flag without which kernels before 5.16 slow down every filtered process, as a measure against Spectre."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""First number of x86_64's calls with pointers of 32 bits, which would pass beside the filter."""

_NAMESPACES: Final = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME: Final = 0x80
"""CLONE_NEWTIME. For `clone` the bit is part of the signal at the child's end, so only `unshare` has it."""
_SOCKET_TYPE: Final = 0xF
_RAW_TYPES: Final = (socket.SOCK_RAW, 10)
"""SOCK_RAW and SOCK_PACKET. Netlink's sockets are raw too, but reach no network, and NCCL asks them for interfaces."""
_DENIED_FAMILIES: Final = (17, 38, 44)
"""AF_PACKET, AF_ALG (the kernel's ciphers, with a history of holes) and AF_XDP."""

_X86_64: Final[dict[str, int]] = {
    "ptrace": 101,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "bpf": 321, "add_key": 248, "request_key": 249, "keyctl": 250,
    "kexec_load": 246, "kexec_file_load": 320, "userfaultfd": 323, "perf_event_open": 298,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "setns": 308,
    "swapon": 167, "swapoff": 168, "reboot": 169, "settimeofday": 164, "clock_settime": 227, "acct": 163,
    "syslog": 103, "sethostname": 170, "setdomainname": 171, "quotactl": 179, "iopl": 172, "ioperm": 173,
}  # fmt: skip
_AARCH64: Final[dict[str, int]] = {
    "ptrace": 117,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
    "bpf": 280, "add_key": 217, "request_key": 218, "keyctl": 219,
    "kexec_load": 104, "kexec_file_load": 294, "userfaultfd": 282, "perf_event_open": 241,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "open_by_handle_at": 265, "setns": 268,
    "swapon": 224, "swapoff": 225, "reboot": 142, "settimeofday": 170, "clock_settime": 112, "acct": 89,
    "syslog": 116, "sethostname": 161, "setdomainname": 162, "quotactl": 60,
}  # fmt: skip
_EVERYWHERE: Final[dict[str, int]] = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467, "io_uring_setup": 425,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """Numbers of one architecture: `denied` by the name of the call, the others for calls judged by arguments."""

    architecture: int
    """AUDIT_ARCH_* of the kernel's <linux/audit.h>."""
    seccomp: int
    clone: int
    unshare: int
    socket: int
    prlimit64: int
    denied: dict[str, int]
    clone3: int = 435


MACHINES: Final = {
    "x86_64": Machine(0xC000003E, 317, 56, 272, 41, 302, _X86_64 | _EVERYWHERE),
    "aarch64": Machine(0xC00000B7, 277, 220, 97, 198, 261, _AARCH64 | _EVERYWHERE),
}
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict() -> None:
    """Filter the system calls of this process and its descendants. Call it in a process with one thread.

    Raises:
        OSError: the kernel, or the architecture, has no such filter.
    """
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise OSError(errno.ENOSYS, f"seccomp: the numbers of {os.uname().machine} are not known")
    code = program(machine)
    held = _Program(len(code) // 8, code)
    if _libc.syscall(machine.seccomp, _SET_FILTER, _SPEC_ALLOW, ctypes.byref(held)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def program(machine: Machine) -> bytes:
    """Return the filter as instructions of 8 bytes (`struct sock_filter`), for a little-endian architecture."""
    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    code = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_EQUAL, machine.architecture, then=1),
        refuse,  # programs of 32 bits have other numbers
        _step(_LOAD, _AT_NUMBER),
        _step(_AT_LEAST, _X32, otherwise=1),
        refuse,
    ]
    for number in sorted(machine.denied.values()):
        code += [_step(_EQUAL, number, otherwise=1), refuse]
    # Its flags lie in memory, which a filter cannot read. The C library takes `clone` then.
    code += [_step(_EQUAL, machine.clone3, otherwise=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    code += _when(machine.clone, [_argument(0), _step(_ANY_BIT, _NAMESPACES, otherwise=1), refuse])
    code += _when(
        machine.unshare, [_argument(0), _step(_ANY_BIT, _NAMESPACES | _NEW_TIME, otherwise=1), refuse]
    )
    code += _when(machine.prlimit64, _limits(refuse))
    code += _when(machine.socket, _sockets(refuse))
    code.append(_step(_RETURN, _ALLOW))
    return b"".join(code)


def _limits(refuse: bytes) -> list[bytes]:
    """Return the part that refuses new limits of a process by its id: an agent of the same user would be one.

    The calling process is 0. Without new limits (a null pointer, in two halves) the call only reads.
    """
    return [
        _argument(0),
        _step(_EQUAL, 0, otherwise=1),
        _step(_RETURN, _ALLOW),
        _argument(2),
        _step(_EQUAL, 0, otherwise=2),
        _argument(2, upper=True),
        _step(_EQUAL, 0, then=1),
        refuse,
    ]


def _sockets(refuse: bytes) -> list[bytes]:
    """Return the part that refuses sockets for packets and for ciphers, and raw ones of IPv4 and IPv6."""
    found = [_argument(0)]
    for family in _DENIED_FAMILIES:
        found += [_step(_EQUAL, family, otherwise=1), refuse]
    found += [
        _step(_EQUAL, socket.AF_INET, then=2),
        _step(_EQUAL, socket.AF_INET6, then=1),
        _step(_RETURN, _ALLOW),
        _argument(1),
        _step(_AND, _SOCKET_TYPE),
    ]
    for kind in _RAW_TYPES:
        found += [_step(_EQUAL, kind, otherwise=1), refuse]
    return found


def _when(number: int, body: Sequence[bytes]) -> list[bytes]:
    """Return the body for one call: a call that it does not refuse is allowed."""
    found = [*body, _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, otherwise=len(found)), *found]


def _argument(index: int, *, upper: bool = False) -> bytes:
    """Return the loading of one half of an argument: the lower one has all of an `int`, and all flags of `clone`."""
    return _step(_LOAD, _AT_ARGUMENTS + 8 * index + 4 * upper)


def _step(code: int, operand: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, operand)
