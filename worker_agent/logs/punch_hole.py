"""Free the disk space of the parts of a file that were read, while another process still appends to it."""

from __future__ import annotations

import ctypes
import errno
import os

import structlog

_log = structlog.get_logger()

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_BLOCK_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Holes:
    """Holes punched into files. A hole reads as zeros; lengths and offsets stay unchanged.

    Args:
        step_bytes: minimum number of bytes to free in one call; fewer are left for a later call.
    """

    def __init__(self, step_bytes: int = 16 << 20) -> None:
        self._step_bytes = step_bytes
        self._empty_to: dict[str, int] = {}
        self._unsupported = False

    def empty(self, path: str, end: int, begin: int = 0) -> None:
        """Free the bytes from `begin` to `end`, in whole blocks."""
        begin += -begin % _BLOCK_BYTES
        end -= end % _BLOCK_BYTES
        if self._unsupported or end - max(begin, self._empty_to.get(path, 0)) < self._step_bytes:
            return
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # From the beginning: to punch the holes of an earlier agent again costs nothing.
            failed = _libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin) != 0
            number = ctypes.get_errno()
        finally:
            os.close(file)
        if not failed:
            self._empty_to[path] = end
        elif number in _UNSUPPORTED:
            self._unsupported = True
            _log.warning(
                "this file system cannot free the shipped part of a log before its run is over", path=path
            )

    def forget(self, path: str) -> None:
        """Forget the holes of a file that is deleted."""
        self._empty_to.pop(path, None)
