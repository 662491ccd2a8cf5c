"""Access for an unprivileged user to a few folders below a closed one, such as a home folder of mode 0700.

The process gets its own mount namespace. In it, the closed folder is replaced by an empty one in which only
the required folders appear. Other processes see no difference, and the rest of the closed folder is not
reachable. It requires CAP_SYS_ADMIN.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_FOLDER_MODE = 0o711
_libc = ctypes.CDLL(None, use_errno=True)


def closed_above(path: Path) -> Path | None:
    """Return the topmost folder above `path` that other users may not enter; None if they may enter all."""
    for folder in reversed(path.parents):
        with contextlib.suppress(OSError):
            if not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


def open_up(paths: Sequence[Path]) -> None:
    """Give this process mounts in which no folder above one of the paths is closed. Do nothing if none is.

    Paths that do not exist are ignored.

    Raises:
        OSError: the kernel does not allow it.
    """
    needed: dict[Path, list[Path]] = {}
    for path in sorted({one.resolve() for one in paths if one.exists()}):
        folder = closed_above(path)
        if folder is not None:
            needed.setdefault(folder, []).append(path)
    if not needed:
        return
    _check(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)  # host mounts still appear here; ours stay private
    for folder, inside in needed.items():
        _cover(folder, inside)


def _cover(folder: Path, inside: Sequence[Path]) -> None:
    """Mount an empty folder over `folder` that contains only the paths `inside` of it."""
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in inside]
    try:
        _mount("tmpfs", str(folder), "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode={_FOLDER_MODE:o},size=1m")
        for path, descriptor in held:
            _make(folder, path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _mount(f"/proc/self/fd/{descriptor}", str(path), None, _MS_BIND | _MS_REC)
    finally:
        for _, descriptor in held:
            os.close(descriptor)


def _make(top: Path, path: Path, *, is_folder: bool) -> None:
    for folder in (one for one in reversed(path.parents) if one.is_relative_to(top) and one != top):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(_FOLDER_MODE)
    if not path.exists():
        path.mkdir() if is_folder else path.touch()


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    _check(_libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot set up the mount namespace of a rank: {os.strerror(code)}")
