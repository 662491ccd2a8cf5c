"""Folders with the programs and libraries of ranks, which every job of this host may read.

The agent's start folder is not among them, although Python searches it first (`python -m`): it may be the
agent's own folder, or a parent of it. A folder that contains a private folder, or lies in one, is left out
too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from worker_agent.launcher.landlock import beside

_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PACKAGES = Path(__file__).resolve().parents[2]
"""Folder that this program was imported from. A checkout's top folder may also hold an agent's folder."""


def interpreter_folders(private: Sequence[Path], imports: Sequence[str] | None = None) -> list[Path]:
    """Return the interpreter's folders and the folders that it imports from, without anything private.

    If a private folder lies in one of the interpreter's own folders or in this program's, the rest of that
    folder is returned. Any other folder that contains a private folder is left out.

    Args:
        private: folders that jobs must not read.
        imports: entries of `sys.path`; None means those of this process.
    """
    closed = [one.resolve() for one in private]
    found: list[Path] = []
    for folder in _required_folders():
        if any(one.is_relative_to(folder) for one in closed):
            found += beside(folder, closed)
        elif not _touches(folder, closed):
            found.append(folder)
    for entry in sys.path if imports is None else imports:
        folder = Path(entry).resolve()
        if entry and folder.is_dir() and folder != _working_folder() and not _touches(folder, closed):
            found.append(folder)
    return list(dict.fromkeys(found))


def code_folders(env: Mapping[str, str], private: Sequence[Path]) -> list[Path]:
    """Return the interpreter's folders and the folders in the ranks' environment, without anything private."""
    closed = [one.resolve() for one in private]
    named = [Path(one) for name in _PATHS for one in env.get(name, "").split(os.pathsep) if one]
    outside = [one for one in named if one.is_absolute() and not _touches(one.resolve(), closed)]
    return [*interpreter_folders(private), *outside]


def misplaced(private: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the interpreter's folders that no job can read, each with the private folder that contains it."""
    for folder in _required_folders():
        for one in private:
            if folder.is_relative_to(one.resolve()):
                yield folder, one


def _required_folders() -> list[Path]:
    """Return the folders without which no rank starts."""
    top = [_PACKAGES / "headway", _PACKAGES / "worker_agent"] if Path("/") == _PACKAGES else [_PACKAGES]
    return [Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), *top]


def _touches(folder: Path, closed: Iterable[Path]) -> bool:
    return any(folder.is_relative_to(one) or one.is_relative_to(folder) for one in closed)


def _working_folder() -> Path | None:
    with suppress(OSError):  # the folder may be gone
        return Path.cwd().resolve()
    return None
