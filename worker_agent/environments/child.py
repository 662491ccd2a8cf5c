"""Build one environment in the confinement of its own, because a package runs code while it is built.

`python -m worker_agent.environments.child` reads an order as JSON from its standard input and confines itself before
it starts uv. What uv prints goes to its standard error, line by line, and the outcome to its standard output.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from worker_agent.environments import layer
from worker_agent.environments.layer import HostPackage
from worker_agent.launcher import processes
from worker_agent.launcher.confinement import Confinement, enter

ENVIRONMENT: Final = "environment"
"""Folder of the environment below the folder of the build."""
_LAST_LINES: Final = 40


class BuildOrder(BaseModel):
    """Order of the agent to a child process. `files` are written below `folder`, and `main` is one of them."""

    folder: str
    uv: str
    python: str
    main: str
    locked: bool
    files: dict[str, str]
    layer: list[HostPackage]
    env: dict[str, str]
    """Settings of uv, and of the way to its index."""
    confinement: Confinement


class BuildReply(BaseModel):
    """Outcome of a build: the packages of the host that it took over, or the last lines of uv's output."""

    host_packages: list[str] = []
    failed: list[str] | None = None


class _Failed(Exception):
    """Raised with the last lines of a program that failed."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__(lines[-1:])


def main() -> int:
    """Build the environment of one order, and return the exit code."""
    processes.die_with_parent()
    order = BuildOrder.model_validate_json(sys.stdin.buffer.read())
    enter(order.confinement)
    os.environ.update(order.env)
    os.chdir(order.folder)
    try:
        reply = BuildReply(host_packages=_build(order, Path(order.folder)))
    except _Failed as error:
        reply = BuildReply(failed=error.lines)
    sys.stdout.write(reply.model_dump_json())
    return 0


def _build(order: BuildOrder, folder: Path) -> list[str]:
    for inner in ("home", "tmp", "files"):
        (folder / inner).mkdir()
    os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"))
    for name, text in order.files.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    target = folder / ENVIRONMENT
    uv = [order.uv, "--no-config", "--no-progress", "--cache-dir", str(folder / "cache")]
    _run(
        [
            *uv,
            "venv",
            "--quiet",
            "--relocatable",
            "--no-python-downloads",
            "--python",
            order.python,
            str(target),
        ]
    )
    (site,) = target.glob("lib/python*/site-packages")
    layer.describe(order.layer, site)
    wanted = folder / "files" / order.main
    if order.locked:
        wanted = folder / "tmp" / "locked.txt"
        export = ["export", "--quiet", "--frozen", "--no-emit-project", "--no-dev", "--no-header"]
        _run(
            [
                *uv,
                *export,
                "--project",
                str((folder / "files" / order.main).parent),
                "--output-file",
                str(wanted),
            ]
        )
    # Without bytecode every start would compile the sources, and the folder is read-only then.
    _run(
        [
            *uv,
            "pip",
            "install",
            "--compile-bytecode",
            "--python",
            str(target / "bin" / "python"),
            "-r",
            str(wanted),
        ]
    )
    kept = layer.link(order.layer, site)
    for inner in ("home", "tmp", "files", "cache"):
        shutil.rmtree(folder / inner, ignore_errors=True)
    return kept


def _run(argv: Sequence[str]) -> None:
    """Run uv, and copy its output to standard error.

    Raises:
        _Failed: it failed.
    """
    lines: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=processes.die_with_parent,  # noqa: PLW1509  # this process has one thread
    ) as started:
        assert started.stdout is not None
        for raw in started.stdout:
            os.write(2, raw)
            lines = [*lines, raw.decode(errors="replace").rstrip()][-_LAST_LINES:]
    if started.returncode != 0:
        raise _Failed([*lines] or [f"uv exited with code {started.returncode}"])


if __name__ == "__main__":
    sys.exit(main())
