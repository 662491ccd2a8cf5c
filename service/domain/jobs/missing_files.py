"""Advice on files that a script did not find in its working folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

_GONE = re.compile(
    r"can't open file|[Cc]annot open |No module named|No such file or directory(?!: '/)|\./\S+: not found|"
    r"is not in the working folder$"
)
"""Errors about a file of the working folder that is not there, of Python, of shells and of the agent."""
_PATHS = (
    re.compile(r"No such file or directory: b?['\"](?P<path>[^'\"]+)['\"]"),
    re.compile(r"unable to open file: name = '(?P<path>[^']+)', errno = 2\b"),
    re.compile(r"FileNotFoundError: (?P<path>\S+) not found\.?$"),
    re.compile(
        r"^[^\s:]+: (?:cannot access |cannot open )?'?(?P<path>[^\s':]+)'?: No such file or directory$"
    ),
    re.compile(r"can't open file '(?P<path>[^']+)'"),
)
"""Errors of Python, HDF5, NumPy and of commands that name the missing file."""
_WORK = re.compile(r"^/.*/runs/[^/]+/work/(?P<path>.+)$")
"""Absolute paths in the working folder of a job, as an agent makes it."""
_LAST = 5
"""Lines at the end of the output in which a missing file explains the exit."""


def folder_advice(lines: Sequence[str], *, uploaded: bool) -> str:
    """Return what may help a job that misses a file of its working folder; empty if its last lines name none.

    Without a folder the file is missing for that reason. With one, the upload may have left it out.
    """
    last = [line.rstrip() for line in lines if line.strip()][-_LAST:]
    if not uploaded:
        gone = any(_GONE.search(line) for line in last)
        return (
            "no folder was uploaded with the job: name the folder of the script in `workdir`" if gone else ""
        )
    path = next((path for line in reversed(last) if (path := _missing(line))), None)
    if path is None:
        return ""
    return (
        f"if {path} is in the submitted folder, an ignore file kept it from the upload: write !{path} into .headwayignore (and "
        "!FOLDER/ before it for an excluded folder), or read it by an absolute path on the nodes"
    )


def _missing(line: str) -> str | None:
    """Return the path in the working folder that an error says is missing; None if it says none."""
    found = next((found for pattern in _PATHS if (found := pattern.search(line))), None)
    if found is None:
        return None
    path = found["path"]
    if inner := _WORK.match(path):
        path = inner["path"]
    path = path.removeprefix("./")
    outside = path.startswith(("/", "~", "../")) or "://" in path
    return None if outside else path
