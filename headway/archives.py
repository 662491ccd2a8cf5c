"""Reader for untrusted archives, with limits on their contents that apply before anything is read."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from headway.layout import Kind, Layout, LayoutRefused, Parts, shown

_LARGEST_READ_BYTES = 128 << 10
"""Size limit of one read. A larger one can only be for a header, which would stay in memory."""
_PIECE_BYTES = 64 << 10
_DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, ArithmeticError, RecursionError)
"""Errors of the standard library for damaged archives. Some come from parsing code and are not documented."""


class ArchiveRefused(ValueError):
    """Error: the archive holds a forbidden entry or too much data. The text says what; `code` is stable."""

    code = "bundle_refused"


class TooMuch(ArchiveRefused):
    """Error: the archive unpacks to more bytes or entries than allowed."""

    code = "bundle_too_large"


class Damaged(ArchiveRefused):
    """Error: the archive is not a tar.gz, or is truncated."""

    code = "bundle_damaged"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file, folder or link to create, relative to the folder into which the archive is unpacked."""

    path: Parts
    """Path components without `.` and `..`, none of them a link. Empty for the folder itself."""
    kind: Kind
    executable: bool
    modified_s: float
    content: IO[bytes] | None = None
    """Content of a file, which must be read before the next entry is requested."""
    target: str = ""
    """Target of a link."""
    same_as: Parts | None = None
    """Path of the entry of the same file, for a hard link."""


@contextmanager
def members(packed: BinaryIO, *, most_bytes: int, most_entries: int) -> Iterator[Iterator[ArchiveEntry]]:
    """Yield the entries of a `tar.gz` after checking each. Each may be created before the next is requested.

    Raises:
        ArchiveRefused: an entry or the archive is refused; also during the iteration.
    """
    with gzip.GzipFile(fileobj=packed) as unzipped:
        bounded = cast("BinaryIO", _Bounded(cast("BinaryIO", unzipped), most_bytes))
        yield _checked_entries(bounded, most_bytes=most_bytes, most_entries=most_entries)


def _checked_entries(bounded: BinaryIO, *, most_bytes: int, most_entries: int) -> Iterator[ArchiveEntry]:
    layout = Layout()
    total_bytes = count = 0
    with _as_archive_error():
        archive = tarfile.open(fileobj=bounded, mode="r:")  # noqa: SIM115  # the caller closes its file
    while True:
        with _as_archive_error():
            member = archive.next()
            if member is None:
                return
            count += 1
            total_bytes += member.size
            if total_bytes > most_bytes:
                raise TooMuch(f"unpacked, it is over {most_bytes} bytes")
            entry = _entry(layout, member, archive)
            if max(count, layout.entries) > most_entries:
                raise TooMuch(f"unpacked, it is over {most_entries} entries")
        yield entry


def _entry(layout: Layout, member: tarfile.TarInfo, archive: tarfile.TarFile) -> ArchiveEntry:
    """Check a member by itself and against the members before it."""
    name = member.name
    if member.mode & 0o7000:
        raise ArchiveRefused(
            f"{shown(name)} would run with the rights of another user (mode {member.mode:o})"
        )
    if member.size < 0 or member.sparse is not None:
        raise ArchiveRefused(f"{shown(name)} has holes; pack it without (tar --no-sparse)")
    executable, modified_s = bool(member.mode & 0o100), float(member.mtime)
    if member.isdir():
        return ArchiveEntry(layout.add_folder(name), "folder", executable, modified_s)
    if member.issym():
        path = layout.add_link(name, member.linkname)
        return ArchiveEntry(path, "link", executable, modified_s, target=member.linkname)
    if member.islnk():
        path, source = layout.add_hard_link(name, member.linkname)
        return ArchiveEntry(path, "file", executable, modified_s, same_as=source)
    if not member.isreg():
        raise ArchiveRefused(f"{shown(name)} is neither a file nor a folder")
    path = layout.add_file(name)
    return ArchiveEntry(path, "file", executable, modified_s, content=archive.extractfile(member))


@contextmanager
def _as_archive_error() -> Iterator[None]:
    """Raise `ArchiveRefused` for any error of the standard library that a damaged archive causes."""
    try:
        yield
    except ArchiveRefused:
        raise
    except LayoutRefused as error:
        raise ArchiveRefused(str(error)) from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk that holds the archive
        raise Damaged(f"it is not a readable tar.gz: {error}") from error


def pieces(content: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file of an archive in pieces.

    Raises:
        ArchiveRefused: the archive ends before the file does.
    """
    while True:
        with _as_archive_error():
            piece = content.read(_PIECE_BYTES)
        if not piece:
            return
        yield piece


class _Bounded(io.RawIOBase):
    """A file that raises `TooMuch` if more is read than a valid archive of this size can hold."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        self._file = file
        # Headers and padding of small files come on top.
        self._furthest = most_bytes + max(most_bytes // 4, 64 << 20)

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
