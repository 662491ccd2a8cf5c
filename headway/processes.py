"""What a process that holds credentials does for itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4
_PRIVATE = 0o077


def keep_to_itself() -> None:
    """Write no core dumps, make files for this user alone, and keep other processes of the user from reading this one's
    memory and environment, where the system can do that.
    """
    os.umask(_PRIVATE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
