"""The filter as a program: what it decides for each call, by a small interpreter of its instructions."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys

import pytest

from worker_agent.launcher.system_calls import MACHINES, Machine, program

ALLOWED, DENIED, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NEW_USER, SIGCHLD, THREAD = 0x10000000, 17, 0x3D0F00


def decision(machine: Machine, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Return what the filter returns, as the kernel runs it."""
    held = architecture if architecture is not None else machine.architecture
    data = struct.pack("<IIQ6Q", number, held, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("<HBBI", program(machine)))
    at = value = 0
    while True:
        code, then, otherwise, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            value &= operand
        elif code == 0x06:
            return int(operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += then if holds else otherwise


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_named_call_is_denied_and_its_neighbours_pass(machine: Machine) -> None:
    for number in machine.denied.values():
        assert decision(machine, number) == DENIED
    special = {machine.clone, machine.clone3, machine.unshare, machine.socket, machine.prlimit64}
    others = set(range(470)) - set(machine.denied.values()) - special
    assert {decision(machine, number) for number in others} == {ALLOWED}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(
    ("family", "kind", "wanted"),
    [
        (2, 1, ALLOWED), (2, 2 | 0o2000000, ALLOWED), (10, 1, ALLOWED), (1, 5, ALLOWED), (16, 3, ALLOWED),
        (2, 3, DENIED), (2, 3 | 0o2000000, DENIED), (10, 3, DENIED), (2, 10, DENIED), (17, 2, DENIED), (44, 3, DENIED), (38, 5, DENIED),
    ],
)  # fmt: skip
def test_sockets_of_packets_are_denied_and_those_of_streams_and_netlink_pass(
    machine: Machine, family: int, kind: int, wanted: int
) -> None:
    assert decision(machine, machine.socket, family, kind) == wanted


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_processes_and_threads_are_made_and_namespaces_are_not(machine: Machine) -> None:
    assert decision(machine, machine.clone, SIGCHLD) == ALLOWED
    assert decision(machine, machine.clone, THREAD) == ALLOWED
    assert decision(machine, machine.clone, NEW_USER | SIGCHLD) == DENIED
    assert decision(machine, machine.clone3) == ABSENT
    assert decision(machine, machine.unshare, 0x200) == ALLOWED
    assert decision(machine, machine.unshare, 0x80) == DENIED


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(
    ("pid", "new_limits", "wanted"),
    [
        (0, 0, ALLOWED), (0, 0x7FFF00001000, ALLOWED), (4711, 0, ALLOWED),
        (4711, 0x1000, DENIED), (4711, 0x7FFF00001000, DENIED), (4711, 0x7FFF00000000, DENIED),
    ],
)  # fmt: skip
def test_limits_of_another_process_are_read_and_not_set(
    machine: Machine, pid: int, new_limits: int, wanted: int
) -> None:
    assert decision(machine, machine.prlimit64, pid, 7, new_limits) == wanted


def test_calls_that_libraries_of_training_make_pass() -> None:
    passing = {
        "x86_64": {
            "process_vm_readv": 310, "process_vm_writev": 311, "io_setup": 206, "io_submit": 209, "shmget": 29,
            "memfd_create": 319, "pidfd_open": 434, "pidfd_getfd": 438, "mbind": 237, "set_mempolicy": 238,
            "move_pages": 279, "sched_setaffinity": 203, "sched_setscheduler": 144, "mlock": 149, "mq_open": 240,
            "timer_create": 222, "rt_sigaction": 13, "personality": 135, "kcmp": 312, "membarrier": 324,
        },
        "aarch64": {
            "process_vm_readv": 270, "process_vm_writev": 271, "io_setup": 0, "io_submit": 2, "shmget": 194,
            "memfd_create": 279, "pidfd_open": 434, "pidfd_getfd": 438, "mbind": 235, "set_mempolicy": 237,
            "move_pages": 239, "sched_setaffinity": 122, "sched_setscheduler": 119, "mlock": 228, "mq_open": 180,
            "timer_create": 107, "rt_sigaction": 134, "personality": 92, "kcmp": 272, "membarrier": 283,
        },
    }  # fmt: skip
    for name, numbers in passing.items():
        decided = {call: decision(MACHINES[name], number) for call, number in numbers.items()}
        assert decided == dict.fromkeys(numbers, ALLOWED), name


def test_calls_of_other_architectures_are_denied() -> None:
    machine = MACHINES["x86_64"]
    assert decision(machine, 1) == ALLOWED
    assert decision(machine, 1, architecture=0x40000003) == DENIED
    assert decision(machine, 0x40000001) == DENIED


FAMILIES = """
import errno, socket
from worker_agent.launcher import processes, system_calls
def refusal(family):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET).close()
    except OSError as error:
        return error.errno
    return 0
before = refusal(63)
processes.forbid_new_privileges()
system_calls.restrict()
print(before == errno.EAFNOSUPPORT, refusal(63) == errno.EAFNOSUPPORT, refusal(38) == errno.EPERM)
"""
"""Process that asks the kernel for a family that no kernel has (63), and under the filter for AF_ALG (38) too."""


def test_ciphers_of_the_kernel_are_denied_by_the_filter_also_where_the_kernel_has_none() -> None:
    done = subprocess.run([sys.executable, "-c", FAMILIES], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
