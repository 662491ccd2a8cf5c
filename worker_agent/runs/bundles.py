"""Working folder of a job: the bundle is downloaded once, and unpacked once per job by a confined process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from headway.errors import HeadwayError
from worker_agent.launcher.unpack import NOT_UNPACKED, REFUSED, UnpackFailure, UnpackOrder

CACHE_BYTES = 2 << 30
UNPACKED_BYTES = 8 << 30
UNPACKED_ENTRIES = 100_000
UNPACK_LIMIT_S = 900.0
"""Time limit in seconds. An archive of the maximum size takes less even on a slow disk."""
_PASSED = ("LD_LIBRARY_PATH", "PATH")

Download = Callable[[str, Path], None]
"""Function that writes the bundle with a digest to a path, after verification."""


class BadBundle(HeadwayError):
    """Raised when the bundle was not unpacked. `code` is stable; only `NOT_UNPACKED` may succeed on another attempt."""

    def __init__(self, problem: str, code: str = REFUSED) -> None:
        self.code = code
        self.retryable = code == NOT_UNPACKED
        super().__init__(f"The bundle cannot be unpacked ({code}): {problem}.", _HINTS.get(code, ""))


_HINTS = {
    REFUSED: "Submit the folder again with `headway submit`, without the entry that the message names.",
    NOT_UNPACKED: "Check the disk and the log of the agent on this node; the job is retried.",
}


class BundleCache:
    """Bundles on disk by digest; the least recently used ones are evicted first."""

    def __init__(self, folder: Path, download: Download, limit_bytes: int = CACHE_BYTES) -> None:
        self._folder = folder
        self._download = download
        self._limit_bytes = limit_bytes

    def unpack(self, digest: str | None, target: Path, user: int | None = None) -> None:
        """Unpack the bundle to `target`, or create an empty folder without one. Do nothing if `target` exists.

        It is unpacked as `user`, who owns it; None means the agent's own user.

        Raises:
            BadBundle: an entry could leave the folder, or the file is not a tar.gz, or it is too large.
        """
        if target.exists():
            return
        partial = target.with_name(f"{target.name}-{os.urandom(4).hex()}.partial")
        partial.mkdir(parents=True, mode=0o700)
        try:
            if user is not None:
                os.chown(partial, user, user)
            if digest is not None:
                extract(self._fetch(digest), partial, user)
            with contextlib.suppress(FileExistsError):  # another generation of the job was faster
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _fetch(self, digest: str) -> Path:
        path = self._folder / f"{digest.removeprefix('sha256:')}.tar.gz"
        if path.exists():
            os.utime(path)
            return path
        temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
        try:
            self._download(digest, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._evict(keep=path)
        return path

    def _evict(self, keep: Path) -> None:
        entries = [(entry, entry.stat()) for entry in self._folder.glob("*.tar.gz")]
        total = sum(stat.st_size for _, stat in entries)
        for entry, stat in sorted(entries, key=lambda pair: pair[1].st_mtime):
            if total <= self._limit_bytes:
                return
            if entry != keep:
                entry.unlink(missing_ok=True)
                total -= stat.st_size


def extract(
    archive: Path, target: Path, user: int | None = None, most_entries: int = UNPACKED_ENTRIES
) -> None:
    """Unpack into `target`, an empty folder of the user's, in a process that can write nowhere else.

    Raises:
        BadBundle: see its class.
    """
    folder = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with archive.open("rb") as packed:
            failure = _unpacked(packed, UnpackOrder(folder, user, UNPACKED_BYTES, most_entries))
    finally:
        os.close(folder)
    if failure is not None:
        raise BadBundle(failure.message, failure.code)


def _unpacked(packed: BinaryIO, order: UnpackOrder) -> UnpackFailure | None:
    """Unpack in a child process without the agent's environment. Return the failure, or None on success."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "worker_agent.launcher.unpack", order.to_json()],
            cwd=Path(__file__).parents[2],  # folder from which this package was imported
            env={name: os.environ[name] for name in _PASSED if name in os.environ},
            stdin=packed,
            capture_output=True,
            pass_fds=[order.folder],
            timeout=UNPACK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return UnpackFailure(NOT_UNPACKED, f"it did not finish within {UNPACK_LIMIT_S:.0f} s")
    if done.returncode == 0:
        return None
    with contextlib.suppress(ValueError, TypeError):
        return UnpackFailure(**json.loads(done.stdout))
    last_line = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
    return UnpackFailure(
        NOT_UNPACKED, f"the unpacking process exited with code {done.returncode}: {last_line[:300]}"
    )
