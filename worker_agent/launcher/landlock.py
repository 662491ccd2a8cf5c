"""Keep processes of one user apart, without privileges: Landlock (Linux 5.13 and newer) through its three system calls.

A process that restricts itself reaches only what its rules name; neither it nor what it starts can look into, trace or
change a process outside of that restriction, nor, from Linux 6.12 on, send it a signal. Rules only ever allow, and a rule
holds for a whole folder. To close one folder, everything beside it, and beside each folder above it, is allowed. So what is
later made directly in one of these folders above cannot be reached.

Numbers are those of the kernel's <linux/landlock.h>.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_SCOPE_SIGNAL = 1 << 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_READ = 1 << 0 | 1 << 2  # execute, and read
_REFER = 1 << 13
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove and make entries of every kind
_SIGNALS_SINCE, _TRUNCATE_SINCE, _REFER_SINCE = 6, 3, 2
_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's version of Landlock; 0 without it."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))))


def confines_signals() -> bool:
    """Whether a restricted process cannot send signals to others of its user."""
    return version() >= _SIGNALS_SINCE


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a process may still do with folders. What is in none of them may be read and changed."""

    private: Sequence[Path]
    """Closed, but for what the others name inside of them."""
    own: Sequence[Path] = ()
    """Read and changed."""
    written: Sequence[Path] = ()
    """Their files are read and written; none is made or removed."""
    code: Sequence[Path] = ()
    """Read and executed."""


def restrict(bounds: Bounds) -> None:
    """Hold this process, and all that it will start, to these bounds. `forbid_new_privileges` must have been called.

    Raises:
        OSError: the kernel does not do it.
    """
    known = version()
    in_file = _READ | _WRITE_FILE | (_TRUNCATE if known >= _TRUNCATE_SINCE else 0)
    everything = in_file | _CHANGE_FOLDER | (_REFER if known >= _REFER_SINCE else 0)
    # Older kernels know a shorter structure, and refuse one in which there is more.
    attributes = struct.pack("QQQ", everything, 0, _SCOPE_SIGNAL)[: None if known >= _SIGNALS_SINCE else 8]
    ruleset = _call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for access, paths in (
            (everything, [*bounds.own, *_beside(Path("/"), [*bounds.private, *bounds.code])]),
            (in_file, bounds.written),
            (_READ, bounds.code),
        ):
            for path in paths:
                _allow(ruleset, path, access, in_file)
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _beside(folder: Path, closed: Sequence[Path]) -> Iterator[Path]:
    """The largest folders and files under `folder` that hold none of the `closed`, and lie in none."""
    if folder in closed:
        return
    if not any(one.is_relative_to(folder) for one in closed):
        yield folder
        return
    try:
        entries = sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.is_symlink())
    except OSError:  # not ours to read, so not the rank's either
        return
    for entry in entries:
        yield from _beside(entry, closed)


def _allow(ruleset: int, path: Path, access: int, in_file: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # gone by now, or closed to us: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= in_file
        rule = struct.pack("=Qi", access, descriptor)
        _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
