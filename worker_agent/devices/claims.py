"""Claims on the GPUs of this host, so that only one agent offers a GPU at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from pathlib import Path

from headway.errors import HeadwayError

FOLDER = Path("/dev/shm/headway-devices")  # noqa: S108  # common to all users; it ends with the boot
"""Folder with a locked file for each claimed GPU."""
_NAME_BYTES = 256


class DeviceClaims:
    """Claims of one agent. They end with its process.

    Args:
        agent: name of the agent, which others show when they find the GPU claimed.
        folder: common folder of all agents of the host.
        shared: claim nothing, and offer what others offer too.
    """

    def __init__(self, agent: str, folder: Path = FOLDER, *, shared: bool = False) -> None:
        self._agent = agent
        self._folder = folder
        self._shared = shared
        self._locks: dict[str, int] = {}

    def claim(self, uuid: str) -> str | None:
        """Claim a GPU. Return None if this agent has it now, else the name of the agent that offers it.

        Raises:
            HeadwayError: the folder cannot be used.
        """
        if self._shared or uuid in self._locks:
            return None
        try:
            lock = self._open(uuid)
        except OSError as error:
            raise HeadwayError(
                f"The claim on GPU {uuid} cannot be made in {self._folder}: {error.strerror}.",
                "Make the folder writable for every agent of the host, or start the agent with --share-gpus.",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, _NAME_BYTES, 0).decode(errors="replace").strip()
            os.close(lock)
            return holder or "another agent"
        os.ftruncate(lock, 0)
        os.pwrite(lock, self._agent.encode()[:_NAME_BYTES], 0)
        self._locks[uuid] = lock
        return None

    def release(self) -> None:
        """Give all claims back. The end of the process does the same."""
        for lock in self._locks.values():
            os.close(lock)
        self._locks.clear()

    def _open(self, uuid: str) -> int:
        """Open the file of a GPU for agents of every user, and create it if it is missing."""
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            self._folder.chmod(stat.S_ISVTX | 0o777)
        path = self._folder / hashlib.sha256(uuid.encode()).hexdigest()[:32]
        usual = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(
                path, usual
            )  # without O_CREAT, which the kernel refuses for a file of another user
        except FileNotFoundError:
            lock = os.open(path, usual | os.O_CREAT, 0o666)
            if os.fstat(lock).st_uid == os.geteuid():
                os.fchmod(lock, 0o666)  # whatever the umask is
            return lock
