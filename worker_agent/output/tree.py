"""Access to a folder that a job writes to. The job chooses its names and links, so no link is ever followed.

Every path is opened from the descriptor of the folder, one component at a time, with O_NOFOLLOW.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from headway.contract.output import MAX_FILES, MAX_PATH_BYTES

Signature: TypeAlias = tuple[int, int, int, int]
"""Size, modification time, change time and inode of a file. They stay equal while the file is not written to."""
Kind = Literal["file", "folder", "link"]
TEMPORARY = ".headway-partial-"
_CACHE = "__pycache__"
_SMALL_BYTES = 64 << 10
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class TooManyFiles(OSError):
    """Raised when the folder has more files than can be kept."""


class Unreadable(OSError):
    """Raised when a file of the folder is gone, is no regular file, or has a mode that forbids reading."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """Entry of the folder as the file system describes it."""

    kind: Kind
    signature: Signature
    mode: int
    target: str = ""
    disk_bytes: int = 0
    """Bytes that a file takes on disk, at most its size: less for a sparse file. Its hard links have the same inode."""

    @property
    def size_bytes(self) -> int:
        """Size of a file in bytes; 0 for anything else."""
        return self.signature[0] if self.kind == "file" else 0

    @property
    def inode(self) -> int:
        """Number that all hard links of a file share."""
        return self.signature[3]

    @property
    def mtime_ns(self) -> int:
        """Modification time in nanoseconds of Unix time."""
        return self.signature[1]


@dataclass(frozen=True, slots=True)
class Scan:
    """Entries of the folder. `odd` lists paths that cannot be kept, such as sockets or undecodable names.

    `closed` lists folders that may not be read: they are entries, but their contents are unknown.
    """

    entries: dict[str, TreeEntry]
    odd: tuple[str, ...]
    closed: tuple[str, ...] = ()


class Tree:
    """Open folder; the context manager `open_tree` closes it."""

    def __init__(self, descriptor: int) -> None:
        self._root = descriptor

    def scan(self, *, most: int = MAX_FILES) -> Scan:
        """List everything in the folder, except Python's caches of compiled code.

        Raises:
            TooManyFiles: there are more than `most` entries.
            OSError: the folder cannot be read.
        """
        entries: dict[str, TreeEntry] = {}
        odd: list[str] = []
        closed: list[str] = []
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                names = self._names(folder)
            except OSError as error:
                if not folder:
                    raise
                if error.errno in _GONE:  # removed or replaced since it was listed
                    del entries[folder]
                    continue
                if error.errno not in _FORBIDDEN:
                    raise
                closed.append(folder)
                continue
            for name, path in names:
                if name == _CACHE or name.startswith(TEMPORARY):
                    continue
                entry = self.look(path) if _is_text(path) else None
                if entry is None:
                    odd.append(ascii(path)[:200])
                    continue
                if len(entries) == most:
                    raise TooManyFiles(f"it has more than {most:,} files")
                entries[path] = entry
                if entry.kind == "folder":
                    waiting.append(path)
        return Scan(entries, tuple(sorted(odd)), tuple(sorted(closed)))

    @contextmanager
    def reading(self, path: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading.

        Raises:
            Unreadable: see its class.
        """
        try:
            with self._folder_of(path) as (folder, name):
                descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError as error:
            raise Unreadable(error.errno, f"{path} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(f"{path} is not a regular file any more")
            yield file

    @contextmanager
    def growing(self, path: str) -> Iterator[BinaryIO]:
        """Open a regular file to read it, and to append to it."""
        with self._folder_of(path) as (folder, name):
            descriptor = os.open(name, _FILE & ~os.O_RDONLY | os.O_RDWR | os.O_APPEND, dir_fd=folder)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(f"{path} is not a regular file any more")
            yield file

    @contextmanager
    def replacing(self, path: str, *, mode: int, mtime_ns: int) -> Iterator[BinaryIO]:
        """Write a file under a temporary name, and move it to `path` when the block ends without an error.

        Missing parent folders are created.
        """
        self.make_folder(path.rpartition("/")[0])
        with self._folder_of(path) as (folder, name):
            temporary = f"{TEMPORARY}{os.urandom(6).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    yield file
                    os.fchmod(descriptor, mode | stat.S_IRUSR | stat.S_IWUSR)
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
                self._clear(folder, name, unless=stat.S_ISREG)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents. Anything else with one of these names is removed."""
        folder = os.dup(self._root)
        try:
            for name in path.split("/") if path else []:
                self._clear(folder, name, unless=stat.S_ISDIR)
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                inner = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        finally:
            os.close(folder)

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link, and replace an existing entry."""
        self.make_folder(path.rpartition("/")[0])
        with self._folder_of(path) as (folder, name):
            self._clear(folder, name, unless=lambda _: False)
            os.symlink(target, name, dir_fd=folder)

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty folder; anything else stays."""
        with suppress(FileNotFoundError, NotADirectoryError), self._folder_of(path) as (folder, name):
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                with suppress(OSError):  # not empty
                    os.rmdir(name, dir_fd=folder)

    def _names(self, folder: str) -> list[tuple[str, str]]:
        descriptor = self._open_folder(folder)
        try:
            names = sorted(os.listdir(descriptor))  # noqa: PTH208  # takes a descriptor
            os.stat(".", dir_fd=descriptor)  # fails if names may be read, but not what they name
        finally:
            os.close(descriptor)
        return [(name, f"{folder}/{name}" if folder else name) for name in names]

    def look(self, path: str) -> TreeEntry | None:
        """Return one entry, or None if there is none that can be kept."""
        try:
            with self._folder_of(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else ""
        except OSError:  # removed since it was listed
            return None
        kind = _kind_of(found.st_mode)
        if kind is None or not _is_text(target):
            return None
        signature = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        disk_bytes = _disk_bytes(found) if kind == "file" else 0
        return TreeEntry(kind, signature, stat.S_IMODE(found.st_mode) & 0o777, target, disk_bytes)

    @contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        above, _, name = path.rpartition("/")
        descriptor = self._open_folder(above)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _open_folder(self, path: str) -> int:
        folder = os.dup(self._root)
        for name in path.split("/") if path else []:
            try:
                inner = os.open(name, _FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _clear(self, folder: int, name: str, *, unless: Callable[[int], bool]) -> None:
        """Remove the entry with this name, unless it has the right type."""
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if unless(mode):
            return
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def open_tree(root: Path, inner: str, *, make: bool = False) -> Iterator[Tree]:
    """Open the folder `inner` below `root`, which the job cannot replace.

    `inner` is relative; empty or `.` means `root` itself.

    Raises:
        OSError: it is not a folder, or one of its components is a link.
    """
    descriptor = os.open(root, _FOLDER)
    try:
        path = "" if inner == "." else inner
        tree = Tree(descriptor)
        if make:
            tree.make_folder(path)
        opened = tree._open_folder(path)  # noqa: SLF001  # the same module
    finally:
        os.close(descriptor)
    try:
        yield Tree(opened)
    finally:
        os.close(opened)


def _kind_of(mode: int) -> Kind | None:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else None


def _disk_bytes(found: os.stat_result) -> int:
    """Return the bytes of a file's blocks. Small files count in full: some file systems keep them without blocks."""
    return found.st_size if found.st_size <= _SMALL_BYTES else min(found.st_size, 512 * found.st_blocks)


def next_data(file: BinaryIO, offset: int, size_bytes: int) -> int:
    """Return the position of the first data of a file at or behind `offset`, or `size_bytes` if only a hole follows.

    The position of the open file stays the same. A file system that does not know its holes has data everywhere.
    """
    before = file.tell()
    try:
        return os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        return size_bytes if error.errno == errno.ENXIO else offset
    finally:
        file.seek(before)


def _is_text(path: str) -> bool:
    try:
        return len(path.encode()) <= MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False
