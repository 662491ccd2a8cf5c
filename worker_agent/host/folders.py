"""Layout of the agent's state folder, and functions to write its files.

The launcher uses this module too, so it imports nothing but the standard library and one constant.

    <state>/agent.json            identity of this agent and its block of ports
    <state>/credentials.json      the node's own token, readable by the agent alone
    <state>/agent.lock            lock held by the agent; launcher.lock is held by the launcher
    <state>/launcher.log          log of the launcher
    <state>/outbox.jsonl          report entries that the service has not confirmed
    <state>/slots.json            slot number of each device
    <state>/probes.json           seconds that each device's first successful probe took
    <state>/bundles/              downloaded bundles by digest
    <state>/environments/<digest>/ Python environments of jobs; `*.partial` is one that is being built or removed
    <state>/scratch               link to the folder with the temporary files of jobs
    <state>/runs/<job>/fence.json newest generations seen; older ones are refused
    <state>/runs/<job>/order.json newest order of members, copied into the control folders of the job's runs
    <state>/runs/<job>/work/      unpacked bundle: the working folder of the job's ranks on this node
    <state>/runs/<job>/home/      HOME of the job's ranks
    <state>/runs/<job>/after.ready    the files of the jobs that it started after are in its home folder
    <state>/runs/<job>/output/    HEADWAY_OUTPUT_DIR of the job's ranks, unless the job file puts it into work/
    <state>/runs/<job>/output.json    index of the output files in storage
    <state>/runs/<job>/output.unsaved exists while the last save of the output folder is missing
    <state>/runs/<job>/handover.json  this node's part in the last change of rank 0's node
    <state>/runs/<job>/bundle.json    list of the files that came with the bundle
    <state>/runs/<job>/<generation>/
        command.json     the `run` command as it arrived
        notes.json       the agent's record of its actions on the run
        environment.json path of the run's Python environment, if it has one of its own
        launch.json      the agent's order to the launcher
        rank-N.env       environment of a rank; the launcher never reads it, because ranks inherit its memory
        started          exists once the launcher accepted the order; says how the ranks were started
        rank-N.pid       process id and start time of a rank, written by the launcher
        rank-N.exit      exit code or signal of a rank, written by the launcher
        rank-N.gone      in a live run: exists once no process of the rank is left
        gone             exists once no process of the run is left
        ended            exists once the agent queued `released`; nothing more happens in the run
        rank-N.log       output of a rank, both streams
        rank-N.shipped   bytes of that log that the service has
        shipped          exists once the service has all logs of the run
        control/         the ranks find it in HEADWAY_CONTROL
            order.json   order of members that the ranks of this run follow, written by the agent
            output.json  generation whose rank 0 may write to the output folder here, written by the agent
            output-given.json  generation since which a process is rank 0 no more
            stop.json    grace period of the ranks and the reason of the stop, written by the agent before SIGTERM
            rank-N.jsonl messages of a rank to the agent
            ranks-N.jsonl  ranks that the process started as N has got since, with the places in its log

`write_json` replaces a file by a rename, so a crash never leaves a half-written file.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.contract.changes import STOP_FILE, boot_clock_s
from headway.contract.orders import ORDER_FILE, OUTPUT_FILE, OUTPUT_GIVEN_FILE

_JOB_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")


def boot_s() -> float:
    """Return the seconds since the host booted, including time asleep: the clock of leases and deadlines."""
    return boot_clock_s()


def write_json(path: Path, value: Any) -> None:
    """Replace the file atomically with `value` as JSON. The folder must exist."""
    write_text(path, json.dumps(value))


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the file atomically. The folder must exist. If the disk is full, no temporary file is left.

    Only this user can read the file unless `mode` says otherwise, because others may have access to its
    folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private) as file:  # pathlib has no opener
            file.write(text)
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_json(path: Path) -> Any | None:
    """Return the parsed content of the file, or None if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return json.loads(text)


class _Entry:
    """Path below a folder of this module, as an attribute of the folder's class."""

    def __init__(self, name: str | Path) -> None:
        self._name = name

    def __get__(self, folder: Any, _: type[Any]) -> Path:
        path: Path = folder.path / self._name
        return path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of one generation of a job on this node."""

    path: Path

    command = _Entry("command.json")
    launch = _Entry("launch.json")
    notes = _Entry("notes.json")
    started = _Entry("started")
    gone = _Entry("gone")
    ended = _Entry("ended")
    shipped = _Entry("shipped")
    control = _Entry("control")
    environment = _Entry("environment.json")
    order = _Entry(Path("control", ORDER_FILE))
    stop = _Entry(Path("control", STOP_FILE))
    output_ready = _Entry(Path("control", OUTPUT_FILE))
    output_given = _Entry(Path("control", OUTPUT_GIVEN_FILE))

    @property
    def name(self) -> str:
        """Name of the run between agent and launcher: `<job>/<generation>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def job_id(self) -> str:
        """Id of the job to which this run belongs."""
        return self.path.parent.name

    @property
    def generation(self) -> int:
        """Generation of the job in this run."""
        return int(self.path.name)

    @property
    def job(self) -> JobFolder:
        """Folder of the job on this node."""
        return JobFolder(self.path.parent)

    @property
    def own_environment(self) -> Path | None:
        """Folder of the run's Python environment; None if the run uses the packages of the host."""
        path = read_json(self.environment)
        return None if path is None else Path(path)

    @property
    def work(self) -> Path:
        """Working folder of the ranks, shared by all generations of the job on this node."""
        return self.job.work

    def pid(self, rank: int) -> Path:
        """Return the file with the process id and start time of a rank."""
        return self.path / f"rank-{rank}.pid"

    def env(self, rank: int) -> Path:
        """Return the file with the environment of a rank."""
        return self.path / f"rank-{rank}.env"

    def exit(self, rank: int) -> Path:
        """Return the file with the exit code or signal of a rank."""
        return self.path / f"rank-{rank}.exit"

    def rank_gone(self, rank: int) -> Path:
        """Return the file that exists, in a live run, once no process of the rank is left."""
        return self.path / f"rank-{rank}.gone"

    def log(self, rank: int) -> Path:
        """Return the file with the output of a rank, both streams."""
        return self.path / f"rank-{rank}.log"

    def log_offset(self, rank: int) -> Path:
        """Return the file with the number of log bytes that the service has."""
        return self.path / f"rank-{rank}.shipped"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Folder of one job on this node."""

    path: Path

    fence = _Entry("fence.json")
    order = _Entry(ORDER_FILE)
    work = _Entry("work")
    home = _Entry("home")
    output = _Entry("output")
    output_index = _Entry("output.json")
    handover = _Entry("handover.json")
    output_unsaved = _Entry("output.unsaved")
    bundle = _Entry("bundle.json")
    after_ready = _Entry("after.ready")

    def run(self, generation: int) -> RunFolder:
        """Return the folder of one generation."""
        return RunFolder(self.path / str(generation))

    def runs(self) -> list[RunFolder]:
        """Return every generation that has a folder, oldest first."""
        numbers = sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdigit())
        return [self.run(number) for number in numbers]


@dataclass(frozen=True, slots=True)
class StateFolder:
    """State folder of the agent, used by one agent at a time."""

    path: Path

    identity = _Entry("agent.json")
    credentials = _Entry("credentials.json")
    agent_lock = _Entry("agent.lock")
    launcher_lock = _Entry("launcher.lock")
    launcher_log = _Entry("launcher.log")
    outbox = _Entry("outbox.jsonl")
    slots = _Entry("slots.json")
    probes = _Entry("probes.json")
    bundles = _Entry("bundles")
    environments = _Entry("environments")
    scratch = _Entry("scratch")
    runs = _Entry("runs")

    def make(self) -> None:
        """Create the folders with access for this user only, because they hold environments of jobs."""
        for folder in (self.path, self.bundles, self.runs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def job(self, job_id: str) -> JobFolder:
        """Return the folder of a job.

        Raises:
            ValueError: the id is not valid as the name of a folder.
        """
        if not _JOB_ID.match(job_id):
            raise ValueError(f"{job_id!r} is not a valid job id")
        return JobFolder(self.runs / job_id)

    def jobs(self) -> list[JobFolder]:
        """Return every job that has a folder."""
        return [JobFolder(entry) for entry in sorted(self.runs.iterdir()) if entry.is_dir()]

    def run(self, name: str) -> RunFolder:
        """Return the folder of the run with this name (`<job>/<generation>`)."""
        job_id, _, generation = name.partition("/")
        return self.job(job_id).run(int(generation))


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Run whose logs are to be shipped."""

    folder: RunFolder
    ranks: tuple[int, ...]
    has_secrets: bool = False
    """True if the run has secrets. Its logs are shipped only once the agent knows them, so that it can hide them."""
