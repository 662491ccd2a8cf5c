"""The folder for temporary files of all jobs of an agent: `/tmp/headway-…`, with a folder for each job in it.

It stays while the agent is started again, since ranks go on meanwhile. An agent that ends with its jobs takes it along; one whose
agent is never started again is removed by the next agent on the host that finds it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from worker_agent.folders import JobFolder, StateFolder, read_json, write_json

_NAME: Final = "headway-"
_OWNER: Final = ".owner"
ABANDONED_S: Final = 86_400.0
"""Nothing was put into a folder for so long, and no agent has a link to it."""


def open_scratch(state: StateFolder, root: Path | None = None) -> Path:
    """The agent's folder in `root` (the host's folder for temporary files), kept over restarts as long as the host keeps it."""
    folder = _linked(state)
    if folder is None:
        state.scratch.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_NAME, dir=root))
        state.scratch.symlink_to(folder)
    write_json(folder / _OWNER, {"state": str(state.path.resolve()), "mounts": _mounts()})
    return folder


def close_scratch(state: StateFolder) -> None:
    """Remove it: nothing of any job is left."""
    folder = _linked(state)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        state.scratch.unlink()


def scratch_of(job: JobFolder, scratch: Path) -> Path:
    """The job's folder for temporary files."""
    return scratch / hashlib.sha256(job.path.name.encode()).hexdigest()[:12]


def remove_scratch(job: JobFolder, state: StateFolder) -> None:
    """Remove the job's temporary files."""
    if state.scratch.is_symlink():
        shutil.rmtree(scratch_of(job, state.scratch.readlink()), ignore_errors=True)


def remove_abandoned(now_s: float, root: Path | None = None) -> list[Path]:
    """Remove what agents of this user have left in `root`, and will not come back for.

    Their state folders are looked for, so what was made where other folders are mounted, in a container say, is left alone.
    """
    removed = []
    for folder in sorted((root or Path(tempfile.gettempdir())).glob(f"{_NAME}*")):
        with suppress(OSError, ValueError, KeyError):  # gone, not ours to look into, or not written by us
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            owner = read_json(folder / _OWNER)
            if not owner or owner["mounts"] != _mounts():
                continue
            newest_s = max(one.lstat().st_mtime for one in (folder, *folder.iterdir()))
            if _linked(StateFolder(Path(owner["state"]))) != folder and now_s - newest_s > ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _linked(state: StateFolder) -> Path | None:
    if not state.scratch.is_symlink():
        return None
    folder = state.scratch.readlink()
    return folder if folder.is_dir() and folder.stat().st_uid == os.geteuid() else None


def _mounts() -> str:
    """Which folders are seen here: the same text in every process that sees the same ones."""
    return str(Path("/proc/self/ns/mnt").readlink())
