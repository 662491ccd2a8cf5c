"""Separation of processes of one user without privileges: Landlock (Linux 5.13 and newer) by its three system calls.

A process that restricts itself can access only what its rules allow. Neither the process nor its descendants
can read, trace or change a process outside of the restriction. From Linux 6.12 on they cannot send it a
signal either.

Rules only ever allow access, and a rule covers a whole folder. To close one folder, the module allows
everything beside it and beside each of its parents. So an entry that is created later directly in a parent
folder cannot be accessed, and the parent folders cannot be listed.

The numbers are those of the kernel's <linux/landlock.h>.
"""

from __future__ import annotations

import ctypes
import errno
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
_LIST = 1 << 3
_REFER = 1 << 13
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # remove and make entries of every kind
_SIGNALS_SINCE, _TRUNCATE_SINCE, _REFER_SINCE = 6, 3, 2
_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the kernel's Landlock version; 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))))


def confines_signals() -> bool:
    """Return True if a restricted process cannot send signals to other processes of its user."""
    return version() >= _SIGNALS_SINCE


@dataclass(frozen=True, slots=True)
class Bounds:
    """Access of a process to folders. Content outside all of them may be read and changed."""

    private: Sequence[Path]
    """Folders without access, except for the parts that the other fields name."""
    own: Sequence[Path] = ()
    """Folders whose content may be read and changed."""
    written: Sequence[Path] = ()
    """Folders whose files may be read and written, but not created or removed."""
    code: Sequence[Path] = ()
    """Folders to read and execute from. No private folder may lie in a folder of `code`, `own` or `written`."""


def restrict_to(folder: int) -> None:
    """Restrict this process and its descendants to the content of an open folder. Open files stay usable.

    Raises:
        OSError: the kernel refuses the restriction.
    """
    _, everything = _rights()
    ruleset = _ruleset(everything)
    try:
        _allow_open(ruleset, folder, everything)
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def restrict(bounds: Bounds) -> None:
    """Restrict this process and its descendants to these bounds. `forbid_new_privileges` must have been called.

    Raises:
        OSError: the kernel refuses the restriction, or a private folder lies in one that would be opened.
    """
    for folder in (*bounds.own, *bounds.written, *bounds.code):
        for closed in bounds.private:
            if closed.is_relative_to(folder):
                raise OSError(errno.EPERM, f"Landlock: {folder} would open {closed}, which is private")
    in_file, everything = _rights()
    ruleset = _ruleset(everything)
    try:
        for access, paths in (
            (everything, [*bounds.own, *beside(Path("/"), [*bounds.private, *bounds.code])]),
            (in_file | _LIST, bounds.written),
            (_READ | _LIST, bounds.code),
        ):
            for path in paths:
                _allow(ruleset, path, access, in_file)
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _rights() -> tuple[int, int]:
    """Return the rights that this kernel can restrict: those on a file, and those on a folder with its content."""
    known = version()
    in_file = _READ | _WRITE_FILE | (_TRUNCATE if known >= _TRUNCATE_SINCE else 0)
    return in_file, in_file | _LIST | _CHANGE_FOLDER | (_REFER if known >= _REFER_SINCE else 0)


def _ruleset(rights: int) -> int:
    """Return an empty rule set, which forbids all of these rights and signals to processes outside."""
    # Older kernels know a shorter structure, and reject a longer one.
    short = None if version() >= _SIGNALS_SINCE else 8
    attributes = struct.pack("QQQ", rights, 0, _SCOPE_SIGNAL)[:short]
    return _call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))


def beside(folder: Path, closed: Sequence[Path]) -> Iterator[Path]:
    """Yield the largest folders and files under `folder` that do not contain a `closed` folder or lie in one."""
    if any(folder.is_relative_to(one) for one in closed):
        return
    if not any(one.is_relative_to(folder) for one in closed):
        yield folder
        return
    try:
        entries = sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.is_symlink())
    except OSError:  # not readable for this process, so not for the rank either
        return
    for entry in entries:
        yield from beside(entry, closed)


def _allow(ruleset: int, path: Path, access: int, in_file: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # deleted, or not accessible: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= in_file
        _allow_open(ruleset, descriptor, access)
    finally:
        os.close(descriptor)


def _allow_open(ruleset: int, descriptor: int, access: int) -> None:
    rule = struct.pack("=Qi", access, descriptor)
    _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
