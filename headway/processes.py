"""Self-protection of a process that holds credentials."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4
_PRIVATE = 0o077


def keep_to_itself() -> int:
    """Protect this process: it writes no core dumps, and creates files for this user only.

    Where the system supports it, the user's other processes cannot read its memory and environment. Return the umask that
    it had before.
    """
    before = os.umask(_PRIVATE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return before
