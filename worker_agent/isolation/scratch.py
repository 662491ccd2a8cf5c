"""Folder with the temporary files of all jobs of an agent: `/tmp/headway-…`, with a subfolder for each job.

It is kept while the agent restarts, because ranks continue meanwhile. An agent that ends together with its
jobs removes it. If an agent is never started again, another agent on the host removes its folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from worker_agent.host.folders import JobFolder, StateFolder, read_json, write_json

_NAME: Final = "headway-"
_OWNER: Final = ".owner"
ABANDONED_S: Final = 86_400.0
"""Seconds without a new file after which a folder that no agent links to counts as abandoned."""


def open_scratch(state: StateFolder, root: Path | None = None) -> Path:
    """Return the agent's folder in `root`, and create it if it is missing.

    `root` defaults to the host's folder for temporary files. The folder survives restarts as long as the host
    keeps it.
    """
    folder = _link_target(state)
    if folder is None:
        state.scratch.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_NAME, dir=root))
        state.scratch.symlink_to(folder)
    write_json(folder / _OWNER, {"state": str(state.path.resolve()), "mounts": _mounts()})
    return folder


def close_scratch(state: StateFolder) -> None:
    """Remove the folder, once no job has files in it."""
    folder = _link_target(state)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        state.scratch.unlink()


def scratch_of(job: JobFolder, scratch: Path) -> Path:
    """Return the job's folder for temporary files."""
    return scratch / hashlib.sha256(job.path.name.encode()).hexdigest()[:12]


def remove_scratch(job: JobFolder, state: StateFolder) -> None:
    """Remove the job's temporary files from the agent's folder."""
    if state.scratch.is_symlink():
        shutil.rmtree(scratch_of(job, state.scratch.readlink()), ignore_errors=True)


def remove_abandoned(now_s: float, root: Path | None = None) -> list[Path]:
    """Remove the folders in `root` that agents of this user have abandoned.

    The owner of a folder is found by the path of its state folder. So folders from another mount namespace,
    such as a container's, are left alone.
    """
    removed = []
    for folder in sorted((root or Path(tempfile.gettempdir())).glob(f"{_NAME}*")):
        with suppress(OSError, ValueError, KeyError):  # gone, unreadable, or not an agent's
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            owner = read_json(folder / _OWNER)
            if not owner or owner["mounts"] != _mounts():
                continue
            newest_s = max(one.lstat().st_mtime for one in (folder, *folder.iterdir()))
            if _link_target(StateFolder(Path(owner["state"]))) != folder and now_s - newest_s > ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _link_target(state: StateFolder) -> Path | None:
    if not state.scratch.is_symlink():
        return None
    folder = state.scratch.readlink()
    return folder if folder.is_dir() and folder.stat().st_uid == os.geteuid() else None


def _mounts() -> str:
    """Return a text that is equal in all processes of the same mount namespace."""
    return str(Path("/proc/self/ns/mnt").readlink())
