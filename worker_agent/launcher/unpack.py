"""Unpack an untrusted archive into one folder, in a process that can write nowhere else.

    python -m worker_agent.launcher.unpack ORDER < ARCHIVE

`worker_agent.runs.bundles` starts it. The order names the descriptor of the open folder. Before the process
reads the first byte of the archive, it becomes the job's user, if jobs have one. If the kernel has Landlock,
it can then access nothing but the folder. A failure is printed as one JSON object with a stable code.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from typing import BinaryIO

from headway.archives import ArchiveEntry, ArchiveRefused, members, pieces
from headway.layout import Parts, shown
from worker_agent.launcher.confinement import enter_folder
from worker_agent.launcher.processes import die_with_parent

REFUSED, NOT_UNPACKED = ArchiveRefused.code, "bundle_not_unpacked"
_IMPOSSIBLE = {
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL,
}  # fmt: skip
"""Errors of a file system for a name that it does not support or that already exists: the archive is at fault."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EARLIEST_S = 315_619_200.0
"""Date of files that are older: 1980-01-02. A zip archive cannot hold a date before 1980 in any time zone."""
_LATEST_S = 2.0**33
_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class UnpackOrder:
    """Order to unpack one archive, with its limits.

    `folder` is an open descriptor; `uid` is None if jobs keep the agent's user.
    """

    folder: int
    uid: int | None
    most_bytes: int
    most_entries: int

    def to_json(self) -> str:
        """Return the order as JSON for the command line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class UnpackFailure:
    """Reason why nothing was unpacked. Only `NOT_UNPACKED` may succeed on another attempt."""

    code: str
    message: str


def unpack(packed: BinaryIO, folder: int, *, most_bytes: int, most_entries: int) -> None:
    """Create everything in a tar.gz in an open, empty folder, without following links or replacing entries.

    Raises:
        ArchiveRefused: see its class. A part of the archive may have been unpacked.
        OSError: the file system refuses an entry.
    """
    with members(packed, most_bytes=most_bytes, most_entries=most_entries) as entries:
        for entry in entries:
            _make(entry, folder)


def _make(entry: ArchiveEntry, folder: int) -> None:
    if not entry.path:
        return
    parent = _enter(folder, entry.path[:-1])
    name = entry.path[-1]
    try:
        if entry.kind == "folder":
            os.close(_enter(parent, (name,)))
        elif entry.kind == "link":
            os.symlink(entry.target, name, dir_fd=parent)
        elif entry.same_as is not None:
            _link(folder, entry.same_as, parent, name)
        else:
            _write(entry, parent, name)
    except OSError as error:
        error.filename = "/".join(entry.path)
        raise
    finally:
        os.close(parent)


def _enter(folder: int, path: Parts) -> int:
    """Open a folder below `folder`, and create missing folders on the way."""
    at = os.dup(folder)
    for name in path:
        above = at
        try:
            try:
                at = os.open(name, _FOLDER, dir_fd=above)
            except FileNotFoundError:
                os.mkdir(name, 0o700, dir_fd=above)
                at = os.open(name, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return at


def _link(folder: int, source: Parts, parent: int, name: str) -> None:
    beside = _enter(folder, source[:-1])
    try:
        os.link(source[-1], name, src_dir_fd=beside, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(beside)


def _write(entry: ArchiveEntry, parent: int, name: str) -> None:
    assert entry.content is not None
    with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as file:
        file.writelines(pieces(entry.content))
        file.flush()
        os.fchmod(file.fileno(), 0o755 if entry.executable else 0o644)
        modified_s = entry.modified_s if _EARLIEST_S <= entry.modified_s < _LATEST_S else _EARLIEST_S
        os.utime(file.fileno(), (modified_s, modified_s))


def main() -> int:
    """Unpack standard input, and return the exit code: 0, or 1 after an `UnpackFailure` was printed."""
    die_with_parent()
    order = UnpackOrder(**json.loads(sys.argv[1]))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order.most_bytes, order.most_bytes))
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
        enter_folder(order.folder, order.uid)
        unpack(sys.stdin.buffer, order.folder, most_bytes=order.most_bytes, most_entries=order.most_entries)
    except (ArchiveRefused, OSError) as error:
        sys.stdout.write(json.dumps(asdict(_failure(error))))
        return 1
    return 0


def _failure(error: ArchiveRefused | OSError) -> UnpackFailure:
    if isinstance(error, ArchiveRefused):
        return UnpackFailure(error.code, str(error))
    where = f"{shown(str(error.filename))}: " if error.filename else ""
    code = REFUSED if error.errno in _IMPOSSIBLE else NOT_UNPACKED
    return UnpackFailure(code, f"{where}{error.strerror or error}")


if __name__ == "__main__":
    sys.exit(main())
