"""Check that the files, folders and links of an archive stay inside an empty folder.

Code that packs or unpacks an archive adds each entry to a `Layout`. Nothing is looked up on a disk. A path is
only meaningful while no link is on its way, so every path that passes through a link is refused, in either
order.
"""

from __future__ import annotations

import unicodedata
from typing import Literal

Kind = Literal["file", "folder", "link"]
Parts = tuple[str, ...]

MAX_PATH_BYTES = 1024
"""Length limit of a path. Linux resolves 4096 bytes at once, which leaves room for the parent folder."""
MAX_NAME_BYTES = 255
"""Length limit of a name on the file systems of Linux."""
MAX_DEPTH = 64
MAX_ENTRIES = 20_000
"""Bound of files, links and folders of a bundle, which every node unpacks."""
_SHOWN = 120


class LayoutRefused(ValueError):
    """Error: a name or link must not be created. The text says which, and why."""


class Layout:
    """The entries of the folder so far."""

    def __init__(self) -> None:
        self._kinds: dict[Parts, Kind] = {}
        self._links: set[Parts] = set()
        self._passed: set[Parts] = set()

    @property
    def entries(self) -> int:
        """Number of files, links and folders, including folders that exist only because of their contents."""
        return len(self._kinds)

    def add_file(self, name: str) -> Parts:
        """Add a file and return the components of its path.

        Raises:
            LayoutRefused: the entry is not allowed. The other methods raise it as well.
        """
        return self._add(name, "file")

    def add_folder(self, name: str) -> Parts:
        """Add a folder, which may exist already. The top folder has no components."""
        return self._add(name, "folder")

    def add_link(self, name: str, target: str) -> Parts:
        """Add a symbolic link to `target`, which need not exist."""
        path = self._add(name, "link")
        self._check_target(name, path, target)
        return path

    def add_hard_link(self, name: str, target: str) -> tuple[Parts, Parts]:
        """Add another name for the existing file `target`, and return the paths of both."""
        source = _parts(target)
        if self._kinds.get(source) != "file":
            raise LayoutRefused(
                f"{shown(name)} is a hard link to {shown(target)}, which is no file before it in the archive"
            )
        return self._add(name, "file"), source

    def _add(self, name: str, kind: Kind) -> Parts:
        path = _parts(name)
        if not path and kind != "folder":
            raise LayoutRefused(f"a {kind} in it has no name")
        for length in range(1, len(path)):
            folder = path[:length]
            self._pass_through(folder, name)
            if self._kinds.setdefault(folder, "folder") == "file":
                raise LayoutRefused(f"{shown(name)} is inside of {shown('/'.join(folder))}, which is a file")
        known = self._kinds.get(path)
        if known is not None and (known, kind) != ("folder", "folder"):
            raise LayoutRefused(f"{shown(name)} is in it twice, as a {known} and as a {kind}")
        if kind == "link":
            if _folded(path) in self._passed:
                raise LayoutRefused(f"{shown(name)} is a link, and another path passes through it")
            self._links.add(_folded(path))
        if path:
            self._kinds[path] = kind
        return path

    def _pass_through(self, folder: Parts, name: str) -> None:
        """Record that the path `name` leads through this folder, which must be no link."""
        folded = _folded(folder)
        if folded in self._links:
            raise LayoutRefused(f"{shown(name)} passes through the link {shown('/'.join(folder))}")
        self._passed.add(folded)

    def _check_target(self, name: str, path: Parts, target: str) -> None:
        if not target or target.startswith("/"):
            raise LayoutRefused(f"{shown(name)} links to {shown(target)}, outside the folder")
        steps = _steps(target)
        at = list(path[:-1])
        for index, step in enumerate(steps):
            if step == "..":
                if not at:
                    raise LayoutRefused(f"{shown(name)} links to {shown(target)}, outside the folder")
                at.pop()
            elif step not in {"", "."}:
                at.append(step)
                if index + 1 < len(steps):
                    self._pass_through(tuple(at), f"{name} -> {target}")


def shown(name: str) -> str:
    """Return an untrusted name in a form that fits into a message and a log line."""
    text = name if name.isprintable() and name else repr(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _parts(name: str) -> Parts:
    """Return the components of a path that stays inside the folder."""
    steps = _steps(name)
    if name.startswith("/") or ".." in steps:
        raise LayoutRefused(f"{shown(name)} leaves the folder; paths must stay inside it")
    return tuple(step for step in steps if step not in {"", "."})


def _steps(name: str) -> list[str]:
    """Return the raw components of a path after checking their number and lengths."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise LayoutRefused(f"{shown(name)} is not written in UTF-8") from None
    if "\0" in name:
        raise LayoutRefused(f"{shown(name)} has a zero byte in it")
    steps = name.split("/")
    if size_bytes > MAX_PATH_BYTES or len(steps) > MAX_DEPTH:
        raise LayoutRefused(
            f"{shown(name)} is too long: a path may have {MAX_PATH_BYTES} bytes and {MAX_DEPTH} parts"
        )
    if any(len(step.encode()) > MAX_NAME_BYTES for step in steps):
        raise LayoutRefused(f"{shown(name)} is too long: a name may have {MAX_NAME_BYTES} bytes")
    return steps


def _folded(path: Parts) -> Parts:
    """Return the path as a file system sees it that ignores case and Unicode normalisation."""
    return tuple(unicodedata.normalize("NFKD", step.casefold()).casefold() for step in path)
