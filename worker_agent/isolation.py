"""What keeps jobs from one another and from the agent on this host: chosen once at start, applied to every run.

    users     each job has a user of its own, as nobody else has: needs root
    landlock  jobs share the agent's user, and the kernel (Landlock) closes what is not theirs
    none      jobs share the agent's user; nothing keeps them apart

`docs/isolation.md` says what each of them promises.
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
from headway.contract.places import folder_of
from headway.contract.runtime import message_file, stacks_file
from headway.errors import HeadwayError
from worker_agent.control_groups import ControlGroups
from worker_agent.folders import JobFolder, RunFolder, StateFolder
from worker_agent.launcher import landlock
from worker_agent.launcher.confinement import Confinement, enter
from worker_agent.scratch import open_scratch, scratch_of

_log = structlog.get_logger()

Kind = Literal["users", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("users", "landlock", "none")
_BOUNDS = {"memory": "memory_per_slot", "cpu": "cpus_per_slot", "pids": "the bound of processes"}
"""By controller of control groups."""
MAX_PROCESSES = 16_384
"""Processes and threads that a job may have on a host: many loaders with their threads, and no fork bomb."""
_DEVICES = ("nvidia*", "dri/render*", "kfd")
_CHECKPOINTS = "checkpoints"
_TRIAL = "import headway.contract.runtime"
_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True)
class UserIds:
    """Numbers of users, and of the groups of the same numbers, that nothing else on this host has."""

    first: int = 0x70000000
    last: int = 0x7FFFFFFE
    """By default what Linux distributions leave free above the ranges of containers."""

    def of(self, job_id: str) -> int:
        """The job's user: the same on every host, which may share storage, and in every generation.

        Of a thousand jobs at once two have the same one with a probability of 0.2 % (1000^2 / 2 / 2^28).
        """
        digest = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8])
        return self.first + digest % (self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class Isolation:
    """How ranks are confined on this host. `lacks` says what is not prevented, in sentences for the operator."""

    kind: Kind
    state: StateFolder
    base_env: Mapping[str, str]
    user_ids: UserIds
    scratch: Path
    """Holds the folders for temporary files of all jobs. Its path is short, since programs make sockets there."""
    groups: ControlGroups | None = None
    private: tuple[Path, ...] = ()
    """Folders beside the agent's own that no job may look into."""
    lacks: tuple[str, ...] = ()

    def user_of(self, job_id: str) -> int | None:
        """User and group of the job's ranks; None where they keep the agent's."""
        return self.user_ids.of(job_id) if self.kind == "users" else None

    def prepare(self, command: RunCommand, folder: RunFolder) -> None:
        """Make what the ranks of a run need of their own, beside the working folder. May be called again.

        Raises:
            OSError: it cannot be made.
        """
        user = self.user_of(command.job_id)
        job = JobFolder(folder.path.parent)
        if user is not None:  # ranks pass through these folders, and read nothing in them
            for one in (self.state.path, self.state.runs, job.path, folder.path):
                one.chmod(0o711)
        job.home.mkdir(mode=0o700, exist_ok=True)
        self.scratch.mkdir(mode=0o700, exist_ok=True)  # some hosts tidy up such folders
        if user is not None:
            self.scratch.chmod(0o711)
        scratch_of(job, self.scratch).mkdir(mode=0o700, exist_ok=True)
        for one in (job.home, scratch_of(job, self.scratch)):
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
        """Make the control folder, which is the agent's: ranks write to the files that are theirs, and make none, so that no
        link or pipe of theirs waits where the agent reads or writes. In the thread that delivers orders.

        Raises:
            OSError: it cannot be made.
        """
        user = self.user_of(command.job_id)
        folder.control.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(folder.control, -1, user)
            folder.control.chmod(0o2750)  # what the agent adds has the job's group, which may read it
            for path in folder.control.iterdir():  # an order can be there before its run
                os.chown(path, -1, user, follow_symlinks=False)
        for slot in command.ranks:
            for name in (message_file(slot.rank), stacks_file(slot.rank), error_file(slot.rank)):
                path = folder.control / name
                if not path.exists():
                    path.touch(mode=0o600)
                    give(path, user)

    def environment(self, folder: RunFolder) -> dict[str, str]:
        """Where a rank finds a home and room for temporary files: the job's own."""
        job = JobFolder(folder.path.parent)
        scratch = scratch_of(job, self.scratch)
        return {"HOME": str(job.home), "TMPDIR": str(scratch), "USER": "job", "LOGNAME": "job"}

    def confinement(self, command: RunCommand, folder: RunFolder) -> Confinement:
        """What the launcher makes of each rank of the run."""
        user = self.user_of(command.job_id)
        job = JobFolder(folder.path.parent)
        own = [folder.work, job.home, scratch_of(job, self.scratch)]
        own += [one for one in (checkpoint_folder(command),) if one is not None]
        closed = self.kind == "landlock"
        logs = [folder.log(slot.rank) for slot in command.ranks]  # programs open /dev/stdout anew
        return Confinement(
            uid=user,
            groups=device_groups() if user is not None else (),
            reach=_texts([*own, folder.control, *code_folders(self.base_env)]) if user is not None else (),
            private=_texts([self.state.path, self.scratch, *self.private, *_parent(command)])
            if closed
            else (),
            own=_texts(own) if closed else (),
            written=_texts([folder.control, *logs]) if closed else (),
            code=_texts(_interpreter()) if closed else (),
            group=None if self.groups is None else str(self.groups.make(folder.name)),
            max_processes=MAX_PROCESSES if user is not None else None,
        )

    def _make_checkpoints(self, folder: Path, user: int | None) -> None:
        """Where the folder cannot be made or given away, saving fails, and says so; a job may never save."""
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
) -> Isolation:
    """The strongest kind that works here, or the one that is wanted.

    Raises:
        HeadwayError: the wanted one does not work here.
    """
    lacks = []
    for kind in KINDS if wanted is None else (wanted,):
        problem = _problem(kind, state, base_env, user_ids)
        if not problem:
            lacks += _left_open(kind, groups)
            scratch = open_scratch(state)
            return Isolation(kind, state, base_env, user_ids, scratch, groups, tuple(private), tuple(lacks))
        if wanted is not None:
            raise HeadwayError(
                f"Jobs cannot be kept apart by {wanted} on this host: {problem}.",
                "Leave --isolation out to take what works here, or see docs/isolation.md.",
            )
        lacks.append(f"no {kind}: {problem}")
    raise AssertionError("none always works")


def give(path: Path, user: int | None) -> None:
    """Make the user the owner of a file, or of a folder and all in it. Does nothing where it is, and without a user."""
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
    """Where the job's checkpoints lie, if that is a folder."""
    return folder_of(command.checkpoint_uri)


def error_file(rank: int) -> str:
    """Name of the file in the control folder in which torch describes a rank's error."""
    return f"error-{rank}.json"


def device_groups() -> tuple[int, ...]:
    """Groups without which this host's GPUs cannot be opened."""
    found = set()
    for path in (one for pattern in _DEVICES for one in Path("/dev").glob(pattern)):
        known = path.stat()
        if known.st_mode & 0o006 != 0o006 and known.st_gid:
            found.add(known.st_gid)
    return tuple(sorted(found))


def code_folders(env: Mapping[str, str]) -> list[Path]:
    """Where the programs and libraries of ranks lie."""
    named = [Path(one) for name in _PATHS for one in env.get(name, "").split(os.pathsep) if one]
    return [*_interpreter(), *(one for one in named if one.is_absolute())]


def _interpreter() -> list[Path]:
    """The interpreter's folders, and those that it imports from."""
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parent.parent]
    return [*found, *(Path(one) for one in sys.path if one and Path(one).is_dir())]


def _parent(command: RunCommand) -> list[Path]:
    """The folder that holds the checkpoints of other jobs, as the service lays it out."""
    folder = checkpoint_folder(command)
    return [] if folder is None or folder.parent.name != _CHECKPOINTS else [folder.parent]


def _texts(paths: Sequence[Path]) -> tuple[str, ...]:
    """Each once, with links resolved: the kernel goes by where they lead."""
    return tuple(sorted({str(path.resolve()) for path in paths}))


def _problem(kind: Kind, state: StateFolder, env: Mapping[str, str], user_ids: UserIds) -> str:
    """Why this host cannot do it; empty if it can."""
    if kind == "none":
        return ""
    if kind == "users" and os.geteuid() != 0:
        return "the agent is not root"
    if kind == "landlock" and landlock.version() == 0:
        return "the kernel has no Landlock (Linux 5.13), or it is turned off"
    if kind == "users":
        reach = _texts([*code_folders(env), state.path])
        return _try_out(Confinement(uid=user_ids.first, reach=reach))
    return _try_out(Confinement(private=(str(state.path),)))


def _try_out(confinement: Confinement) -> str:
    """Confine a process and have it start an interpreter; what goes wrong, empty if nothing does. Before any thread starts."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writer, 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.chdir("/")
            enter(confinement)
            os.execv(sys.executable, [sys.executable, "-c", _TRIAL])  # noqa: S606
        except BaseException as error:  # noqa: BLE001  # said to the parent, and nothing of it may run on
            os.write(2, f"{error}".encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as said:
        lines = said.read().strip().splitlines()
    failed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return (lines or ["a process ended without a word"])[-1][:300] if failed else ""


def _left_open(kind: Kind, groups: ControlGroups | None) -> list[str]:
    """What jobs can do here that they should not be able to."""
    found = []
    if kind == "landlock":
        found.append("jobs share the agent's user and can change other files of it")
        if not landlock.confines_signals():
            found.append("jobs can send signals to one another and to the agent (Linux 6.12 prevents it)")
    if kind == "none":
        found.append(
            "jobs can read and change whatever the agent's user can, other jobs and the agent included"
        )
    if groups is None:
        found.append(
            "no control groups: memory_per_slot and cpus_per_slot are not enforced, and what leaves its process group may be missed"
        )
        if kind != "users":
            found.append("nothing bounds how many processes a job starts")
        return found
    missing = [what for name, what in _BOUNDS.items() if name not in groups.controllers]
    if missing:
        found.append(f"not all controllers were delegated to the agent: {', '.join(missing)} not enforced")
    return found
