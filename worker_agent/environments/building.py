"""Build of one environment by a confined process, whose output goes to the log of a rank."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from uv import find_uv_bin

from headway.errors import HeadwayError
from worker_agent.environments.child import ENVIRONMENT, BuildOrder, BuildReply
from worker_agent.environments.inputs import Inputs
from worker_agent.environments.layer import HostPackage
from worker_agent.environments.settings import local_folders
from worker_agent.isolation.modes import Isolation
from worker_agent.launcher import processes

LIMIT_S: Final = 3600.0
"""Time limit of a build in seconds. It covers a download of some GB, and a compilation."""
_LOOK_S: Final = 0.2
_ERROR: Final = re.compile(r"^\s*(error\b|×)")
_TEMPORARY: Final = re.compile(
    r"error sending request|Connection refused|connection reset|timed? ?out|dns error|No space left|50[0234] ",
    re.IGNORECASE,
)
"""Text of failures that another attempt may not meet."""
_SHOWN_CHARACTERS: Final = 700
_PASSED: Final = ("LD_LIBRARY_PATH", "PATH")


class BuildFailed(HeadwayError):
    """Raised when uv failed. `retryable`: an index did not answer, or the disk is full."""

    def __init__(self, problem: str, hint: str = "", *, retryable: bool) -> None:
        self.retryable = retryable
        super().__init__(problem, hint)


class BuildCancelled(Exception):
    """Raised when the run that wanted the environment has ended, or the agent ends."""


@dataclass(frozen=True, slots=True)
class Built:
    """A finished environment that nothing writes to any more. `host_packages` are linked, not installed."""

    path: Path
    size_bytes: int
    host_packages: tuple[str, ...]


class Builder:
    """Builder of environments. Thread-safe.

    Args:
        isolation: kind of isolation of jobs. A build gets the same, with a user of its own.
        site: the agent's own settings of uv, whose folders a build may read.
        stopping: set when the agent ends, which ends builds.
    """

    def __init__(self, isolation: Isolation, site: Mapping[str, str], stopping: threading.Event) -> None:
        self._isolation = isolation
        self._site_folders = tuple(Path(one) for one in local_folders(site))
        self._stopping = stopping

    def build(
        self,
        digest: str,
        folder: Path,
        inputs: Inputs,
        settings: Mapping[str, str],
        packages: Sequence[HostPackage],
        log: Path,
        cancelled: Callable[[], bool],
    ) -> Built:
        """Build an environment in `folder`, which is created, and return it closed to all writers.

        Raises:
            BuildFailed, BuildCancelled: see their classes.
            OSError: the folder or the log cannot be written.
        """
        folder.mkdir(mode=0o700)
        confinement = self._isolation.build_confinement(digest, folder, self._site_folders)
        if confinement.uid is not None:
            os.chown(folder, confinement.uid, confinement.uid)
        order = BuildOrder(
            folder=str(folder),
            uv=find_uv_bin(),
            python=sys.executable,
            main=inputs.main,
            locked=inputs.locked,
            files=dict(inputs.files),
            layer=list(packages),
            env=dict(settings),
            confinement=confinement,
        )
        with os.fdopen(
            os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb"
        ) as output:
            output.write(f"Building the Python environment of {inputs.main} ({digest[:12]}).\n".encode())
            output.flush()
            code, answer = self._run(order, output.fileno(), cancelled)
        try:
            reply = BuildReply.model_validate_json(answer)
        except ValidationError:
            raise BuildFailed(
                f"The process that builds the environment ended with code {code}.",
                "Read the log of the job, and the log of the agent on this node.",
                retryable=True,
            ) from None
        if reply.failed is not None:
            raise _failure(inputs.main, reply.failed)
        target = folder / ENVIRONMENT
        return Built(target, _seal(target), tuple(reply.host_packages))

    def _run(self, order: BuildOrder, log: int, cancelled: Callable[[], bool]) -> tuple[int, bytes]:
        """Run the child to its end, kill what it leaves, and return its exit code and answer."""
        child = subprocess.Popen(
            [sys.executable, "-m", "worker_agent.environments.child"],
            cwd=Path(__file__).parents[2],  # folder from which this package was imported
            env={name: os.environ[name] for name in _PASSED if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        until_s = time.monotonic() + LIMIT_S
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError), child.stdin:  # its answer is missing then
                child.stdin.write(order.model_dump_json().encode())
            child.stdin = None
            while True:
                try:
                    answer, _ = child.communicate(timeout=_LOOK_S)
                except subprocess.TimeoutExpired:
                    if cancelled() or self._stopping.is_set():
                        raise BuildCancelled from None
                    if time.monotonic() > until_s:
                        raise BuildFailed(
                            f"The environment was not built within {LIMIT_S / 60:.0f} minutes.",
                            "Read the log of the job, which has what uv printed.",
                            retryable=False,
                        ) from None
                else:
                    return child.returncode, answer
        finally:
            self._end(child, order.confinement.uid)

    def _end(self, child: subprocess.Popen[bytes], uid: int | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        while uid is not None and (left := processes.owned_by(uid)):
            for one in left:
                processes.kill(one)


def _failure(main: str, lines: Sequence[str]) -> BuildFailed:
    first = next((number for number, line in enumerate(lines) if _ERROR.match(line)), max(0, len(lines) - 3))
    said = " ".join(" ".join(lines[first:]).split())
    if len(said) > _SHOWN_CHARACTERS:
        said = said[: _SHOWN_CHARACTERS - 1] + "…"
    return BuildFailed(
        f"uv could not install {main}: {said.rstrip('.')}.",
        "Correct the file, or name the index by UV_INDEX_URL in `env` or `secrets`; the log of the job has all of uv's output.",
        retryable=any(_TEMPORARY.search(line) for line in lines),
    )


def _seal(folder: Path) -> int:
    """Make the agent the owner of everything in the folder, let others read it, and return its size in bytes.

    No process of the build may live any more.
    """
    size_bytes = 0
    uid, gid = os.geteuid(), os.getegid()
    for _, _, names, descriptor in os.fwalk(folder):
        found = os.fstat(descriptor)
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, 0o755)
        size_bytes += found.st_blocks * 512
        for name in names:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                os.chmod(name, stat.S_IMODE(found.st_mode) & 0o755 | 0o444, dir_fd=descriptor)
                size_bytes += found.st_blocks * 512
    return size_bytes
