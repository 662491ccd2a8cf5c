"""The working folder of a job: its bundle, downloaded once, unpacked once per job."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from headway.archives import ArchiveRefused, members
from headway.errors import HeadwayError

CACHE_BYTES = 2 << 30
UNPACKED_BYTES = 8 << 30
UNPACKED_ENTRIES = 100_000

Download = Callable[[str, Path], None]
"""Writes the bundle of a digest to a path, verified."""


class BadBundle(HeadwayError):
    """The bundle cannot be unpacked here, today or later."""


class BundleCache:
    """Bundles on disk by digest; the least recently used ones go first."""

    def __init__(self, folder: Path, download: Download, limit_bytes: int = CACHE_BYTES) -> None:
        self._folder = folder
        self._download = download
        self._limit_bytes = limit_bytes

    def unpack(self, digest: str | None, target: Path) -> None:
        """Make `target` the unpacked bundle, or an empty folder without one. Does nothing if it exists.

        Raises:
            BadBundle: a member leaves the folder, or it is no tar.gz, or it is too large.
        """
        if target.exists():
            return
        partial = target.with_name(f"{target.name}-{os.urandom(4).hex()}.partial")
        partial.mkdir(parents=True, mode=0o700)
        try:
            if digest is not None:
                extract(self._fetch(digest), partial)
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


def extract(archive: Path, target: Path, most_entries: int = UNPACKED_ENTRIES) -> None:
    """Unpack into `target`; nothing gets out of it, no device, no foreign owner, no more than `most_entries`.

    Raises:
        BadBundle: see there.
    """
    try:
        with (
            archive.open("rb") as packed,
            members(packed, most_bytes=UNPACKED_BYTES, most_entries=most_entries) as (tar, entries),
        ):
            for entry in entries:
                tar.extract(entry, target, filter="data")
    except (tarfile.TarError, ArchiveRefused, zlib.error, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk is full, say: not the bundle's fault
        raise BadBundle(f"The bundle cannot be unpacked: {error}") from error
