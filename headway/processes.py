"""Self-protection of a process that holds credentials."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4
_PRIVATE = 0o077


def keep_to_itself() -> None:
    """Protect this process: write no core dumps, create files for this user only, and hide memory and
    environment.

    Where the system supports it, other processes of the user cannot read this process's memory and
    environment.
    """
    os.umask(_PRIVATE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
