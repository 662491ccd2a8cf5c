"""Where everything lies on disk, and how it is written. Standard library only: the launcher uses it too.

    <state>/agent.json            identity of this agent, its block of ports
    <state>/credentials.json      the node's own token
    <state>/agent.lock            held by the agent; launcher.lock by the launcher
    <state>/outbox.jsonl          report entries that the service has not confirmed
    <state>/slots.json            which device has which number
    <state>/probes.json           how fast each device was when it was first tried out
    <state>/bundles/              downloaded bundles by digest
    <state>/scratch               a link to where the temporary files of jobs are
    <state>/runs/<job>/fence.json the newest generations seen: what is older is refused
    <state>/runs/<job>/order.json the newest order of members: its runs find it in their control folders
    <state>/runs/<job>/work/      the unpacked bundle: the working folder of the job's ranks on this node
    <state>/runs/<job>/home/      HOME of the job's ranks
    <state>/runs/<job>/<generation>/
        command.json  notes.json  ended  shipped                 written by the agent
        launch.json                                              the agent's order to the launcher
        rank-N.env                                               the environment of a rank, for that process alone
        started  rank-N.pid  rank-N.exit  gone                   written by the launcher
        rank-N.gone                                              so is this, of a live run
        control/order.json                                       written by the agent for the ranks
        rank-N.log  control/rank-N.jsonl                         written by the ranks
        rank-N.shipped                                           bytes of the log that the service has

A file appears whole or not at all (`write_json` renames), so a crash leaves no half-written fact.
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
    """Seconds since the host booted, time asleep included: the clock of leases and deadlines."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_json(path: Path, value: Any) -> None:
    """Replace the file in one step. The folder must exist."""
    write_text(path, json.dumps(value))


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the file in one step. The folder must exist. On a full disk nothing is left of the try.

    It is for this user alone unless `mode` says otherwise: the folder it lies in may be one that others pass through.
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
    """The content of the file, or None when there is no such file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return json.loads(text)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one generation of a job on this node."""

    path: Path

    @property
    def name(self) -> str:
        """`<job>/<generation>`: how agent and launcher call the run between them."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def command(self) -> Path:
        """The `run` command as it arrived."""
        return self.path / "command.json"

    @property
    def launch(self) -> Path:
        """What the launcher is to start."""
        return self.path / "launch.json"

    @property
    def notes(self) -> Path:
        """What the agent has done about this run."""
        return self.path / "notes.json"

    @property
    def started(self) -> Path:
        """Exists once the launcher took up the order; says how the ranks were started."""
        return self.path / "started"

    @property
    def gone(self) -> Path:
        """Exists once no process of the run is left."""
        return self.path / "gone"

    @property
    def ended(self) -> Path:
        """Exists once the agent queued `released`: the run is history."""
        return self.path / "ended"

    @property
    def shipped(self) -> Path:
        """Exists once the service has all logs."""
        return self.path / "shipped"

    @property
    def control(self) -> Path:
        """`HEADWAY_CONTROL` of the ranks."""
        return self.path / "control"

    @property
    def order(self) -> Path:
        """The order of members that the ranks of this run follow."""
        return self.control / ORDER_FILE

    @property
    def work(self) -> Path:
        """Working folder of the ranks, shared by all generations of the job on this node."""
        return self.path.parent / "work"

    def pid(self, rank: int) -> Path:
        """Process id and start time of a rank."""
        return self.path / f"rank-{rank}.pid"

    def env(self, rank: int) -> Path:
        """The environment of a rank: the launcher itself never reads it, since every rank inherits its memory."""
        return self.path / f"rank-{rank}.env"

    def exit(self, rank: int) -> Path:
        """How a rank ended."""
        return self.path / f"rank-{rank}.exit"

    def rank_gone(self, rank: int) -> Path:
        """Exists, in a live run, once nothing that the rank was or started is left."""
        return self.path / f"rank-{rank}.gone"

    def log(self, rank: int) -> Path:
        """Output of a rank, both streams."""
        return self.path / f"rank-{rank}.log"

    def log_offset(self, rank: int) -> Path:
        """How many bytes of the log the service has."""
        return self.path / f"rank-{rank}.shipped"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job on this node."""

    path: Path

    @property
    def fence(self) -> Path:
        """The newest generations seen."""
        return self.path / "fence.json"

    @property
    def order(self) -> Path:
        """The newest order of members."""
        return self.path / ORDER_FILE

    @property
    def work(self) -> Path:
        """Working folder of the ranks."""
        return self.path / "work"

    @property
    def home(self) -> Path:
        """`HOME` of the ranks."""
        return self.path / "home"

    def run(self, generation: int) -> RunFolder:
        """The folder of one generation."""
        return RunFolder(self.path / str(generation))

    def runs(self) -> list[RunFolder]:
        """Every generation that has a folder, oldest first."""
        numbers = sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdigit())
        return [self.run(number) for number in numbers]


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The agent's folder. One agent at a time owns it."""

    path: Path

    @property
    def identity(self) -> Path:
        """Instance and ports of this agent."""
        return self.path / "agent.json"

    @property
    def credentials(self) -> Path:
        """The node's own token."""
        return self.path / "credentials.json"

    @property
    def agent_lock(self) -> Path:
        """Held by the agent while it lives."""
        return self.path / "agent.lock"

    @property
    def launcher_lock(self) -> Path:
        """Held by the launcher while it lives."""
        return self.path / "launcher.lock"

    @property
    def launcher_log(self) -> Path:
        """What the launcher prints."""
        return self.path / "launcher.log"

    @property
    def outbox(self) -> Path:
        """Report entries that wait."""
        return self.path / "outbox.jsonl"

    @property
    def slots(self) -> Path:
        """Which device has which number."""
        return self.path / "slots.json"

    @property
    def probes(self) -> Path:
        """How fast each device was when it was first tried out."""
        return self.path / "probes.json"

    @property
    def bundles(self) -> Path:
        """Downloaded bundles."""
        return self.path / "bundles"

    @property
    def scratch(self) -> Path:
        """A link to the folder that holds the temporary files of all jobs."""
        return self.path / "scratch"

    @property
    def runs(self) -> Path:
        """One folder per job."""
        return self.path / "runs"

    def make(self) -> None:
        """Create the folders, for this user only: they hold environments of jobs."""
        for folder in (self.path, self.bundles, self.runs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def job(self, job_id: str) -> JobFolder:
        """The folder of a job.

        Raises:
            ValueError: the id could not be the name of a folder.
        """
        if not _JOB_ID.match(job_id):
            raise ValueError(f"{job_id!r} is not the id of a job")
        return JobFolder(self.runs / job_id)

    def jobs(self) -> list[JobFolder]:
        """Every job that has a folder."""
        return [JobFolder(entry) for entry in sorted(self.runs.iterdir()) if entry.is_dir()]

    def run(self, name: str) -> RunFolder:
        """The folder of the run with this name (`<job>/<generation>`)."""
        job_id, _, generation = name.partition("/")
        return self.job(job_id).run(int(generation))
