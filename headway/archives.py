"""Read archives of strangers: what they may hold is bounded before it is read."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO, cast

_LARGEST_READ_BYTES = 4 << 20
"""Contents are copied in small pieces; one large read is for a header, which is kept in memory."""


class ArchiveRefused(ValueError):
    """The archive holds something that it must not, or too much. The text says what."""


class TooMuch(ArchiveRefused):
    """It unpacks to more bytes or entries than allowed."""


@contextmanager
def members(
    packed: BinaryIO, *, most_bytes: int, most_entries: int
) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    """The archive in a `tar.gz`, and its entries in turn: each is checked, and may be extracted before the next is asked for.

    Raises:
        ArchiveRefused: see there; also while the entries are gone through.
        tarfile.TarError, EOFError, OSError, zlib.error: it is no such archive, or damaged.
    """
    with gzip.GzipFile(fileobj=packed) as unzipped:
        bounded = cast("BinaryIO", _Bounded(cast("BinaryIO", unzipped), most_bytes))
        with tarfile.open(fileobj=bounded, mode="r:") as archive:
            yield archive, _checked(archive, most_bytes=most_bytes, most_entries=most_entries)


def _checked(archive: tarfile.TarFile, *, most_bytes: int, most_entries: int) -> Iterator[tarfile.TarInfo]:
    total_bytes = 0
    for count, member in enumerate(archive, start=1):
        total_bytes += member.size
        if total_bytes > most_bytes or count > most_entries:
            raise TooMuch(f"unpacked, it is over {most_bytes} bytes or {most_entries} entries")
        refuse(member)
        yield member


def refuse(member: tarfile.TarInfo) -> None:
    """Raises ArchiveRefused unless it is a file, a folder, or a link to something inside the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise ArchiveRefused(f"{member.name} leaves the folder; paths must stay inside it")
    if member.islnk() or member.issym():
        target = PurePosixPath(member.linkname)
        depth = 0 if member.islnk() else len(path.parts) - 1
        if target.is_absolute() or _climbs_out(target, depth):
            raise ArchiveRefused(f"{member.name} links to {member.linkname}, outside the folder")
    elif not (member.isfile() or member.isdir()):
        raise ArchiveRefused(f"{member.name} is neither a file nor a folder")
    if member.mode & 0o7000:
        raise ArchiveRefused(
            f"{member.name} would run with the rights of another user (mode {member.mode:o})"
        )


def _climbs_out(target: PurePosixPath, depth: int) -> bool:
    for part in target.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


class _Bounded(io.RawIOBase):
    """A file that ends its reader when more is read than an honest archive of this size has."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file = file
        self._furthest = most_bytes + max(most_bytes // 4, 64 << 20)  # headers and padding of small files

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > _LARGEST_READ_BYTES:
            raise TooMuch("a header in it is larger than any path")
        data = self._file.read(size)
        if self._file.tell() > self._furthest:
            raise TooMuch(f"unpacked, it is over {self._furthest} bytes")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == io.SEEK_SET and offset > self._furthest:
            raise TooMuch(f"unpacked, it is over {self._furthest} bytes")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
