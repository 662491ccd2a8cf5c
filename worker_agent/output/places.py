"""Location of a job's output folder on this node, and files that ranks wrote outside of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from headway.contract.agents import RunCommand
from headway.contract.spec_after import files_variable
from worker_agent.host.folders import JobFolder, RunFolder, read_json, write_json
from worker_agent.launcher.commandline import python_target
from worker_agent.output.tree import open_tree

_MOST_SCANNED: Final = 200_000
_TEMPORARY: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
Bundle = dict[str, tuple[int, int]]
"""Size and modification time of every file that came with the bundle, by path."""


def output_folder(command: RunCommand, folder: RunFolder) -> Path:
    """Return the folder that the job's ranks find in `HEADWAY_OUTPUT_DIR`."""
    root, inner = root_and_inner(command, folder)
    return root / inner if inner else root


def root_and_inner(command: RunCommand, folder: RunFolder) -> tuple[Path, str]:
    """Return a folder that the job cannot replace, and the path of the output folder below it.

    The path is empty if the output folder is that folder itself.
    """
    chosen = command.output.dir
    if chosen is None:
        return folder.job.output, ""
    return folder.work, "" if chosen == "." else chosen


def after_inner(predecessor: str) -> str:
    """Return the path, below the job's home folder, of the files of a job that it started after."""
    return f".headway/after/{predecessor}"


def after_variables(command: RunCommand, folder: RunFolder) -> dict[str, str]:
    """Return the environment variables with the folders of the jobs that this one started after."""
    return {files_variable(one): str(folder.job.home / after_inner(one)) for one in command.after}


def start_folder(command: RunCommand, folder: RunFolder) -> Path:
    """Return the working folder in which ranks start."""
    return output_folder(command, folder) if command.output.as_cwd else folder.work


def lay_out(command: RunCommand, folder: RunFolder) -> None:
    """Create the output folder in a newly unpacked working folder, and record the files of the bundle.

    Raises:
        OSError: the folder cannot be created.
    """
    job = folder.job
    if job.bundle.exists():
        return
    with open_tree(folder.work, "") as tree:
        scan = tree.scan(most=_MOST_SCANNED)
        write_json(job.bundle, {path: found.signature[:2] for path, found in scan.entries.items()})
        tree.make_folder(root_and_inner(command, folder)[1])


def inner_folders(command: RunCommand, folder: RunFolder) -> list[Path]:
    """Return the folders on the path from the working folder to the output folder in it, the outermost first."""
    inner = command.output.dir
    if inner is None or inner == ".":
        return []
    parts = PurePosixPath(inner).parts
    return [folder.work.joinpath(*parts[: count + 1]) for count in range(len(parts))]


def bundle_of(job: JobFolder, inner: str) -> Bundle:
    """Return the files of the bundle below a folder, by paths relative to it."""
    kept: dict[str, list[int]] = read_json(job.bundle) or {}
    prefix = f"{inner}/" if inner else ""
    return {
        path.removeprefix(prefix): (size, mtime)
        for path, (size, mtime) in kept.items()
        if path.startswith(prefix)
    }


def written_elsewhere(command: RunCommand, folder: RunFolder) -> list[str]:
    """Return the files that a run left outside of the output folder, as far as they are known.

    They are the files of the working folder that did not come with the bundle and, for a job with a user of its own, the entries
    of the host's temporary folders.

    Raises:
        OSError: the folder cannot be read, or has too many files.
    """
    user = folder.job.home.stat().st_uid if folder.job.home.exists() else os.geteuid()
    left = [] if user == os.geteuid() else left_by(user, folder.started.stat().st_mtime, _TEMPORARY)
    return [*left, *_written_in_work(command, folder)]


def left_by(uid: int, since_s: float, folders: Sequence[Path]) -> list[str]:
    """Return the entries directly in these folders that belong to the user, and changed since a time."""
    found = []
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed meanwhile
                    known = entry.stat(follow_symlinks=False)
                    if known.st_uid == uid and known.st_ctime >= since_s:
                        found.append(entry.path)
    return sorted(found)


def _written_in_work(command: RunCommand, folder: RunFolder) -> list[str]:
    inner = command.output.dir
    if inner == ".":  # the working folder is the output folder
        return []
    bundle = bundle_of(folder.job, "")
    with open_tree(folder.work, "") as tree:
        scan = tree.scan(most=_MOST_SCANNED)
    return [
        path
        for path, entry in scan.entries.items()
        if entry.kind != "folder"
        and bundle.get(path) != entry.signature[:2]
        and not (inner is not None and PurePosixPath(path).is_relative_to(inner))
    ]


def start_argv(argv: tuple[str, ...], command: RunCommand, folder: RunFolder) -> tuple[str, ...]:
    """Return the command line with the script's path in the unpacked bundle, regardless of the start folder."""
    if start_folder(command, folder) == folder.work:
        return argv
    target = python_target(argv)
    if target is None:
        return (str(folder.work / argv[0]), *argv[1:]) if "/" in argv[0] else argv
    if target.is_module:
        return argv
    at = argv.index(target.name, 1)
    return (*argv[:at], str(folder.work / target.name), *argv[at + 1 :])
