"""The files of a working folder that describe an environment, read without following its links."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway.contract.agents import RunCommand
from headway.errors import HeadwayError

_MOST_BYTES: Final = 16 << 20
_MOST_FILES: Final = 50
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_NESTED: Final = re.compile(
    r"(?:-r|-c|--requirements?|--constraints?)(?:\s*=\s*|\s+|(?<=-[rc]))(?P<file>\S+)"
)
_LINKS: Final = re.compile(r"(?:-f|--find-links)(?:\s*=\s*|\s+)(?P<place>\S+)")
_LOCAL: Final = re.compile(
    r"(-e|--editable)\b|[./~]|file:|\S+\.(whl|zip|tar\.gz|tgz)(\s|$)|[^;#]*@\s*(\.|/|file:)"
)
_LOCAL_SOURCES: Final = frozenset({"path", "directory", "editable", "virtual", "workspace"})
_HINT_LOCAL: Final = (
    "Modules of the working folder are imported without being installed: leave the entry out. A wheel of your own "
    "belongs into an index, or into a folder that UV_FIND_LINKS names."
)


class BadRequirements(HeadwayError):
    """Raised when the file of a job's packages cannot be used. A retry fails in the same way."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Content of the files by path in the working folder. `main` is the one that the job names."""

    main: str
    files: Mapping[str, str]
    locked: bool
    """True if `main` is a lock file of uv."""


def read_inputs(command: RunCommand, work: Path) -> Inputs | None:
    """Return the files that determine the packages of a job, or None if it uses those of the host.

    Raises:
        BadRequirements: a file is missing, too large or not in the working folder, or names something of this host.
    """
    if command.lock is not None:
        return _lock(work, command.lock)
    if command.requirements is None:
        return None
    name = command.requirements
    if name.endswith(".toml"):
        text = _read(work, name)
        _check_sources(name, _toml(name, text))
        return Inputs(name, {name: text}, locked=False)
    return Inputs(name, _requirements(work, name), locked=False)


def _lock(work: Path, name: str) -> Inputs:
    project = posixpath.join(posixpath.dirname(name), "pyproject.toml")
    files = {name: _read(work, name), project: _read(work, project)}
    for package in _toml(name, files[name]).get("package", []):
        source = package.get("source", {}) if isinstance(package, dict) else {}
        local = [kind for kind in _LOCAL_SOURCES & source.keys() if source[kind] != "."]
        if local:
            _refuse_local(name, f"the package {package.get('name')} in {source[local[0]]!r}")
    return Inputs(name, files, locked=True)


def _requirements(work: Path, name: str) -> dict[str, str]:
    files: dict[str, str] = {}
    waiting = [name]
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        if len(files) == _MOST_FILES:
            raise BadRequirements(
                f"{name} includes more than {_MOST_FILES} files.", "Put the requirements into fewer files."
            )
        files[path] = _read(work, path)
        waiting += _included(path, files[path])
    return files


def _included(path: str, text: str) -> Iterator[str]:
    """Yield the files that a requirements file includes. Refuse lines about packages of this host."""
    for raw in text.replace("\\\n", " ").splitlines():
        line = _COMMENT.sub("", raw).strip()
        if found := _NESTED.match(line):
            yield _below(path, found["file"])
        elif found := _LINKS.match(line):
            if not found["place"].startswith(("/", "https://", "http://")):
                _refuse_local(path, f"the folder {found['place']!r}")
        elif _LOCAL.match(line):
            _refuse_local(path, f"the entry {line[:100]!r}")


def _below(path: str, named: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), named))
    if "://" in named or target.startswith(("/", "..")):
        raise BadRequirements(
            f"{path} includes {named!r}, which is not in the working folder.",
            "Copy that file into the working folder.",
        )
    return target


def _check_sources(name: str, fields: Mapping[str, Any]) -> None:
    tool = fields.get("tool", {})
    sources = tool.get("uv", {}).get("sources", {}) if isinstance(tool, dict) else {}
    for package, given in sources.items() if isinstance(sources, dict) else ():
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, dict) and _LOCAL_SOURCES & one.keys():
                _refuse_local(name, f"the source of {package}")


def _refuse_local(name: str, what: str) -> None:
    raise BadRequirements(
        f"{name} names {what}, which only one folder has: environments are shared by jobs.", _HINT_LOCAL
    )


def _toml(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRequirements(f"{name} is not valid TOML: {error}.", "Correct the file.") from None


def _read(work: Path, name: str) -> str:
    """Return the text of a file below `work`. The job owns the folder, so no link in it is followed.

    Raises:
        BadRequirements: see its class.
    """
    folder = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, last = [part for part in name.split("/") if part != "."]
        for part in folders:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        return _text(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadRequirements(
            f"The working folder has no file {name} that can be read: {why}.",
            "Check `python` and `workdir` in the job file, and that no ignore file leaves it out.",
        ) from None
    finally:
        os.close(folder)


def _text(file: int) -> str:
    """Return the text of an open file, which is closed.

    Raises:
        OSError, UnicodeDecodeError: it is not a regular file of text, or too large.
    """
    with open(file, "rb") as opened:  # a descriptor, not a path
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("not a regular file")
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(f"larger than {_MOST_BYTES >> 20} MiB")
    return data.decode()
