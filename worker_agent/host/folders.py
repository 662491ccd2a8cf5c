"""Layout of the agent's state folder, and functions to write its files.

The launcher uses this module too, so it imports nothing but the standard library and one constant.

    <state>/agent.json            identity of this agent and its block of ports
    <state>/credentials.json      the node's own token
    <state>/agent.lock            lock held by the agent; launcher.lock is held by the launcher
    <state>/outbox.jsonl          report entries that the service has not confirmed
    <state>/slots.json            slot number of each device
    <state>/probes.json           time of each device's first probe
    <state>/bundles/              downloaded bundles by digest
    <state>/scratch               link to the folder with the temporary files of jobs
    <state>/runs/<job>/fence.json newest generations seen; older ones are refused
    <state>/runs/<job>/order.json newest order of members, copied into the control folders of the job's runs
    <state>/runs/<job>/work/      unpacked bundle: the working folder of the job's ranks on this node
    <state>/runs/<job>/home/      HOME of the job's ranks
    <state>/runs/<job>/output/    HEADWAY_OUTPUT_DIR of the job's ranks, unless the job file puts it into work/
    <state>/runs/<job>/output.json  index of the output files in storage; output.unsaved exists while the last save is missing
    <state>/runs/<job>/bundle.json  the files that came with the bundle
    <state>/runs/<job>/<generation>/
        command.json  notes.json  ended  shipped                 written by the agent
        launch.json                                              the agent's order to the launcher
        rank-N.env                                               environment of a rank, read by that process alone
        started  rank-N.pid  rank-N.exit  gone                   written by the launcher
        rank-N.gone                                              written by the launcher, in a live run
        control/order.json                                       written by the agent for the ranks
        rank-N.log  control/rank-N.jsonl                         written by the ranks
        rank-N.shipped                                           bytes of the log that the service has

`write_json` replaces a file by a rename, so a crash never leaves a half-written file.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.contract.orders import ORDER_FILE

_JOB_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")


def boot_s() -> float:
    """Return the seconds since the host booted, including time asleep: the clock of leases and deadlines."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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
        with open(temporary, "w", opener=_private) as file:  # pathlib has no opener
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
        text = path.read_text()
    except FileNotFoundError:
        return None
    return json.loads(text)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of one generation of a job on this node."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the run between agent and launcher: `<job>/<generation>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def command(self) -> Path:
        """File with the `run` command as it arrived."""
        return self.path / "command.json"

    @property
    def launch(self) -> Path:
        """File with the agent's order to the launcher."""
        return self.path / "launch.json"

    @property
    def notes(self) -> Path:
        """File with the agent's record of its actions on this run."""
        return self.path / "notes.json"

    @property
    def started(self) -> Path:
        """File that exists once the launcher accepted the order; it says how the ranks were started."""
        return self.path / "started"

    @property
    def gone(self) -> Path:
        """File that exists once no process of the run is left."""
        return self.path / "gone"

    @property
    def ended(self) -> Path:
        """File that exists once the agent queued `released`; nothing more happens in the run."""
        return self.path / "ended"

    @property
    def shipped(self) -> Path:
        """File that exists once the service has all logs of the run."""
        return self.path / "shipped"

    @property
    def control(self) -> Path:
        """Folder that the ranks find in `HEADWAY_CONTROL`."""
        return self.path / "control"

    @property
    def order(self) -> Path:
        """File with the order of members that the ranks of this run follow."""
        return self.control / ORDER_FILE

    @property
    def work(self) -> Path:
        """Working folder of the ranks, shared by all generations of the job on this node."""
        return self.path.parent / "work"

    def pid(self, rank: int) -> Path:
        """Return the file with the process id and start time of a rank."""
        return self.path / f"rank-{rank}.pid"

    def env(self, rank: int) -> Path:
        """Return the file with the environment of a rank.

        The launcher never reads it, because every rank inherits the launcher's memory.
        """
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

    @property
    def fence(self) -> Path:
        """File with the newest generations seen of the job."""
        return self.path / "fence.json"

    @property
    def order(self) -> Path:
        """File with the newest order of members."""
        return self.path / ORDER_FILE

    @property
    def work(self) -> Path:
        """Working folder of the ranks."""
        return self.path / "work"

    @property
    def home(self) -> Path:
        """Folder that the ranks find in `HOME`."""
        return self.path / "home"

    @property
    def output(self) -> Path:
        """Output folder, unless the job file puts it into the working folder."""
        return self.path / "output"

    @property
    def output_index(self) -> Path:
        """File with the index of the output files in storage."""
        return self.path / "output.json"

    @property
    def output_unsaved(self) -> Path:
        """File that exists while the output folder holds files that could not be saved after their ranks ended."""
        return self.path / "output.unsaved"

    @property
    def bundle(self) -> Path:
        """File with the list of files that came with the bundle."""
        return self.path / "bundle.json"

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

    @property
    def identity(self) -> Path:
        """File with the instance id and ports of this agent."""
        return self.path / "agent.json"

    @property
    def credentials(self) -> Path:
        """File with the node's own token."""
        return self.path / "credentials.json"

    @property
    def agent_lock(self) -> Path:
        """Lock that the agent holds while it lives."""
        return self.path / "agent.lock"

    @property
    def launcher_lock(self) -> Path:
        """Lock that the launcher holds while it lives."""
        return self.path / "launcher.lock"

    @property
    def launcher_log(self) -> Path:
        """Log file of the launcher."""
        return self.path / "launcher.log"

    @property
    def outbox(self) -> Path:
        """File with the report entries that wait for delivery."""
        return self.path / "outbox.jsonl"

    @property
    def slots(self) -> Path:
        """File with the slot number of each device."""
        return self.path / "slots.json"

    @property
    def probes(self) -> Path:
        """File with the time of each device's first probe."""
        return self.path / "probes.json"

    @property
    def bundles(self) -> Path:
        """Folder of the downloaded bundles, by digest."""
        return self.path / "bundles"

    @property
    def scratch(self) -> Path:
        """Link to the folder that holds the temporary files of all jobs."""
        return self.path / "scratch"

    @property
    def runs(self) -> Path:
        """Folder that holds one folder per job."""
        return self.path / "runs"

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

    job_id: str
    generation: int
    ranks: tuple[int, ...]
    folder: RunFolder
    has_secrets: bool = False
    """True if the run has secrets. Its logs are shipped only once the agent knows them, so that it can hide them."""
