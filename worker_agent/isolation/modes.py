"""Isolation of jobs from one another and from the agent: chosen once at start, applied to every run.

    users     each job has its own user, which nothing else on the host uses; requires root
    landlock  jobs share the agent's user, and the kernel (Landlock) blocks access to the files of others
    none      jobs share the agent's user; nothing separates them

`docs/isolation.md` describes the guarantees of each kind.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from headway.contract.agents import RunCommand
from headway.contract.renumbering import ranks_file
from headway.contract.runtime import message_file, stacks_file
from headway.contract.values.places import folder_of
from headway.errors import HeadwayError
from worker_agent.host.folders import RunFolder, StateFolder
from worker_agent.isolation.code_folders import code_folders, interpreter_folders, misplaced
from worker_agent.isolation.confined import run_confined
from worker_agent.isolation.control_groups import ControlGroups
from worker_agent.isolation.scratch import open_scratch, scratch_of
from worker_agent.launcher import landlock
from worker_agent.launcher.confinement import PRIVATE_UMASK, Confinement

_log = structlog.get_logger()

Kind = Literal["users", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("users", "landlock", "none")
_BOUNDS = {"memory": "memory_per_slot", "cpu": "cpus_per_slot", "pids": "the process limit"}
"""Job setting that each control-group controller enforces."""
MAX_PROCESSES = 16_384
"""Maximum processes and threads of a job on a host: enough for many data loaders, but it stops a fork bomb."""
_DEVICES = ("nvidia*", "dri/render*", "kfd")
_CHECKPOINTS = "checkpoints"
_TRIAL = "import headway.contract.runtime"


@dataclass(frozen=True, slots=True)
class UserIds:
    """Range of user ids, and of group ids of the same numbers, that nothing else on this host uses."""

    first: int = 0x70000000
    last: int = 0x7FFFFFFE
    """Last id of the range. Linux distributions leave the default range free, above that of containers."""

    def of(self, job_id: str) -> int:
        """Return the job's user id: the same in every generation and on every host, since hosts may share storage.

        Among a thousand jobs at once, two have the same id with a probability of 0.2 % (1000^2 / 2 / 2^28).
        """
        digest = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8])
        return self.first + digest % (self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation of the ranks on this host. `lacks` lists what is not prevented, in sentences for the operator."""

    kind: Kind
    state: StateFolder
    base_env: Mapping[str, str]
    user_ids: UserIds
    scratch: Path
    """Folder with the temporary folders of all jobs. Its path is short, because programs create sockets in it."""
    groups: ControlGroups | None = None
    private: tuple[Path, ...] = ()
    """Folders besides the agent's own that no job may read."""
    lacks: tuple[str, ...] = ()
    umask: int = PRIVATE_UMASK
    """Mask of the permissions of files that ranks create outside and inside of their own folders, which are closed anyway."""
    broken: str = ""
    """Reason for starting no job, because jobs would not be separated; empty if there is none."""

    @property
    def closed(self) -> tuple[Path, ...]:
        """Folders that no job may read, except for the job's own folders in them."""
        return (self.state.path, self.scratch, *self.private)

    def user_of(self, job_id: str) -> int | None:
        """Return user and group id of the job's ranks, or None if they keep the agent's."""
        return self.user_ids.of(job_id) if self.kind == "users" else None

    def prepare(self, command: RunCommand, folder: RunFolder) -> None:
        """Create the folders and limits that the ranks of a run need besides the working folder. Idempotent.

        Raises:
            OSError: a folder or control group cannot be created.
        """
        user = self.user_of(command.job_id)
        job = folder.job
        if user is not None:  # ranks may pass through these folders, but not read them
            for one in (self.state.path, self.state.runs, job.path, folder.path):
                one.chmod(0o711)
        for one in (job.home, job.output):
            one.mkdir(mode=0o700, exist_ok=True)
        self.scratch.mkdir(mode=0o700, exist_ok=True)  # some hosts delete old temporary folders
        if user is not None:
            self.scratch.chmod(0o711)
        scratch_of(job, self.scratch).mkdir(mode=0o700, exist_ok=True)
        for one in (job.home, job.output, scratch_of(job, self.scratch)):
            give(one, user)
        checkpoints = checkpoint_folder(command)
        if checkpoints is not None:
            self._make_checkpoints(checkpoints, user)
        if self.groups is not None:
            slots = len(command.ranks)
            memory, cpus = command.memory_per_slot_bytes, command.cpus_per_slot
            self.groups.make(
                folder.name,
                cpus=None if cpus is None else cpus * slots,
                memory_bytes=None if memory is None else memory * slots,
                max_processes=MAX_PROCESSES,
            )

    def make_control(self, command: RunCommand, folder: RunFolder) -> None:
        """Create the control folder, which belongs to the agent, with a file for each message that ranks write.

        Ranks write to their own files and cannot create any. So no link or pipe of a rank can wait where the
        agent reads or writes. Call it in the thread that delivers orders.

        Raises:
            OSError: the folder or a file cannot be created.
        """
        user = self.user_of(command.job_id)
        folder.control.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(folder.control, -1, user)
            folder.control.chmod(0o2750)  # new files of the agent get the job's group, which may read them
            for path in folder.control.iterdir():  # an order can arrive before its run
                os.chown(path, -1, user, follow_symlinks=False)
        for slot in command.ranks:
            for file_of in (message_file, ranks_file, stacks_file, error_file):
                path = folder.control / file_of(slot.rank)
                if not path.exists():
                    path.touch(mode=0o600)
                    give(path, user)

    def environment(self, folder: RunFolder) -> dict[str, str]:
        """Return the variables for a rank's home folder and temporary folder, which belong to the job."""
        job = folder.job
        scratch = scratch_of(job, self.scratch)
        return {"HOME": str(job.home), "TMPDIR": str(scratch), "USER": "job", "LOGNAME": "job"}

    def confinement(self, command: RunCommand, folder: RunFolder) -> Confinement:
        """Return the confinement that the launcher applies to each rank of the run."""
        user = self.user_of(command.job_id)
        job = folder.job
        own = [folder.work, job.home, job.output, scratch_of(job, self.scratch)]
        own += [one for one in (checkpoint_folder(command),) if one is not None]
        closed = self.kind == "landlock"
        private = [*self.closed, *_parent(command)]
        packages = [one for one in (folder.own_environment,) if one is not None]
        logs = [folder.log(slot.rank) for slot in command.ranks]  # programs reopen /dev/stdout
        return Confinement(
            uid=user,
            groups=device_groups() if user is not None else (),
            reach=_texts([*own, folder.control, *packages, *code_folders(self.base_env, private)])
            if user is not None
            else (),
            private=_texts(private) if closed else (),
            own=_texts(own) if closed else (),
            written=_texts([folder.control, *logs]) if closed else (),
            code=_texts([*packages, *interpreter_folders(private)]) if closed else (),
            group=None if self.groups is None else str(self.groups.make(folder.name)),
            max_processes=MAX_PROCESSES if user is not None else None,
            umask=self.umask,
        )

    def build_confinement(self, name: str, folder: Path, readable: Sequence[Path]) -> Confinement:
        """Return the confinement of the build of an environment, which may write to `folder` alone of the closed folders.

        The build has no job's user: it writes what other jobs execute, so no job may reach it. `readable` are further
        folders that it may read.
        """
        user = self.user_of(f"environment {name}")
        if user is not None:
            for one in (self.state.path, folder.parent):
                one.chmod(0o711)
        closed = self.kind == "landlock"
        code = code_folders(self.base_env, self.closed)
        return Confinement(
            uid=user,
            reach=_texts([folder, *readable, *code]) if user is not None else (),
            private=_texts(self.closed) if closed else (),
            own=_texts([folder]) if closed else (),
            code=_texts([*readable, *interpreter_folders(self.closed)]) if closed else (),
            max_processes=MAX_PROCESSES if user is not None else None,
        )

    def _make_checkpoints(self, folder: Path, user: int | None) -> None:
        """Create the checkpoint folder and give it to the user; on an error, only log a warning.

        The folder matters only to a job that saves; saving then fails and reports its own error.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if user is not None:
                give(folder, user)
                folder.chmod(0o700)
        except OSError as error:
            _log.warning("no folder for checkpoints", folder=str(folder), error=str(error))


def choose(
    wanted: Kind | None,
    state: StateFolder,
    base_env: Mapping[str, str],
    user_ids: UserIds,
    groups: ControlGroups | None,
    private: Sequence[Path] = (),
    *,
    umask: int | None = None,
) -> Isolation:
    """Return the strongest kind of isolation that works on this host, or the wanted one.

    Raises:
        HeadwayError: the wanted kind does not work on this host.
    """
    lacks = []
    for kind in KINDS if wanted is None else (wanted,):
        problem = _problem(kind, state, base_env, user_ids)
        if not problem:
            lacks += _limitations(kind, groups)
            scratch = open_scratch(state)
            mask = PRIVATE_UMASK if umask is None else umask
            return Isolation(
                kind, state, base_env, user_ids, scratch, groups, tuple(private), tuple(lacks), mask
            )
        if wanted is not None:
            raise HeadwayError(
                f"Jobs cannot be kept apart by {wanted} on this host: {problem}.",
                "Leave --isolation out to take what works here, or see docs/isolation.md.",
            )
        lacks.append(f"no {kind}: {problem}")
    raise AssertionError("none always works")


def give(path: Path, user: int | None) -> None:
    """Make the user the owner of a file, or of a folder and its content.

    Do nothing without a user, or if the user already owns it.
    """
    if user is None or path.lstat().st_uid == user:
        return
    for _, _, files, descriptor in os.fwalk(path):
        for name in files:
            os.chown(name, user, user, dir_fd=descriptor, follow_symlinks=False)
        os.chown(descriptor, user, user)
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o700)
    if not path.is_dir():
        os.chown(path, user, user, follow_symlinks=False)


def checkpoint_folder(command: RunCommand) -> Path | None:
    """Return the folder of the job's checkpoints, or None if they are not in a folder."""
    return folder_of(command.checkpoint_uri)


def error_file(rank: int) -> str:
    """Return the name of the file in the control folder in which torch describes a rank's error."""
    return f"error-{rank}.json"


def device_groups() -> tuple[int, ...]:
    """Return the groups that are required to open this host's GPUs."""
    found = set()
    for path in (one for pattern in _DEVICES for one in Path("/dev").glob(pattern)):
        known = path.stat()
        if known.st_mode & 0o006 != 0o006 and known.st_gid:
            found.add(known.st_gid)
    return tuple(sorted(found))


def _parent(command: RunCommand) -> list[Path]:
    """Return the folder that holds the checkpoints of all jobs, if the checkpoint folder has the service's layout."""
    folder = checkpoint_folder(command)
    return [] if folder is None or folder.parent.name != _CHECKPOINTS else [folder.parent]


def _texts(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return each path once, with links resolved, because the kernel checks the resolved path."""
    return tuple(sorted({str(path.resolve()) for path in paths}))


def _problem(kind: Kind, state: StateFolder, env: Mapping[str, str], user_ids: UserIds) -> str:
    """Return the reason why this host does not support the kind; empty if it does."""
    if kind == "none":
        return ""
    if kind == "users" and os.geteuid() != 0:
        return "the agent is not root"
    if kind == "landlock" and landlock.version() == 0:
        return "the kernel has no Landlock (Linux 5.13), or it is turned off"
    if kind == "users":
        reach = _texts([*code_folders(env, [state.path]), state.path])
        return _trial_error(Confinement(uid=user_ids.first, reach=reach))
    code = [*interpreter_folders([state.path]), *(folder for folder, _ in misplaced([state.path]))]
    return _trial_error(Confinement(private=_texts([state.path]), code=_texts(code)))


def _trial_error(confinement: Confinement) -> str:
    """Start an interpreter in a confined process, and return the error; empty on success.

    Call it before any thread starts.
    """
    code, output = run_confined(confinement, [sys.executable, "-c", _TRIAL])
    return "" if code == 0 else output


def _limitations(kind: Kind, groups: ControlGroups | None) -> list[str]:
    """Return what jobs can do on this host although isolation should prevent it, as sentences."""
    found = []
    if kind == "landlock":
        found.append("jobs share the agent's user and can change that user's other files")
        if not landlock.confines_signals():
            found.append("jobs can send signals to one another and to the agent (Linux 6.12 prevents it)")
    if kind == "none":
        found.append(
            "jobs can read and change whatever the agent's user can, other jobs and the agent included"
        )
    if groups is None:
        found.append(
            "no control groups: memory_per_slot and cpus_per_slot are not enforced, and processes that leave their process group may survive their job"
        )
        if kind != "users":
            found.append("the number of processes of a job is not limited")
        return found
    missing = [what for name, what in _BOUNDS.items() if name not in groups.controllers]
    if missing:
        found.append(f"not all controllers were delegated to the agent: {', '.join(missing)} not enforced")
    return found
