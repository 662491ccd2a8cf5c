"""Memory segments that a job with a user of its own leaves on the host: no process can need them once none is left."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
from pathlib import Path

from worker_agent.launcher import processes

_log = logging.getLogger(__name__)

_MEMORY = Path("/dev/shm")  # noqa: S108
_SEGMENTS = Path("/proc/sysvipc/shm")
_IPC_RMID = 0


def remove_memory(uid: int, folder: Path = _MEMORY) -> int:
    """Remove the POSIX and System V memory segments of the user, unless it has a process. Return their number.

    Another agent of the host may run ranks of the same job, and so of the same user.
    """
    if processes.any_of(uid):
        return 0
    removed = _remove_files(uid, folder) + _remove_segments(uid)
    if removed:
        _log.info("removed %d memory segments of the user %d", removed, uid)
    return removed


def _remove_files(uid: int, folder: Path) -> int:
    removed = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != uid:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)  # noqa: PTH108
                removed += 1
    return removed


def _remove_segments(uid: int) -> int:
    """Remove System V segments that nothing is attached to."""
    removed = 0
    with contextlib.suppress(OSError, ValueError):
        names, *lines = _SEGMENTS.read_text(encoding="utf-8").splitlines()
        columns = names.split()
        for line in lines:
            known = dict(zip(columns, map(int, line.split()), strict=True))
            if known["uid"] == uid and known["nattch"] == 0:
                removed += ctypes.CDLL(None).shmctl(known["shmid"], _IPC_RMID, None) == 0
    return removed
