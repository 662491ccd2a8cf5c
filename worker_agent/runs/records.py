"""Records of runs: in memory for decisions, on disk for a restarted agent."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from headway.contract.agents import RunCommand
from headway.contract.runtime import message_file
from worker_agent.host.folders import JobFolder, LoggedRun, RunFolder, StateFolder, read_json, write_json
from worker_agent.isolation.scratch import remove_scratch
from worker_agent.runs.reconcile import Fence, Phase, RunState

_log = structlog.get_logger()

KEEP_GENERATIONS = 3
KEEP_FENCE_S = 30 * 86400.0
KEEP_FOLDERS_S = 6 * 3600.0
LOG_BYTES = 1 << 20


@dataclass(slots=True)
class Run:
    """Record of one generation of a job on this node, until it is released.

    `reconcile` decides on `state`. The other fields record what has been reported.
    """

    command: RunCommand
    folder: RunFolder
    state: RunState
    start_reported: bool = False
    exits_reported: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    """Ranks that have reported the end of their training loop."""
    left: set[int] = field(default_factory=set)
    """Ranks that have reported that they left the job as ordered."""
    library: bool = False
    """True if a rank reported that it runs under the training library."""
    stepped: bool = False
    """True if a rank has reported a step."""
    release_as: int = 0
    """Newest generation that a stop named; its sender waits for the release of that generation."""
    unwanted: bool = False
    """True if the service does not want the run here, because another node does its work."""
    name: str = field(init=False)
    message_files: tuple[tuple[int, str], ...] = field(init=False)
    """Message file of each rank, computed once, because it is read many times a second."""

    def __post_init__(self) -> None:
        self.name = self.folder.name
        control = self.folder.control
        self.message_files = tuple(
            (slot.rank, str(control / message_file(slot.rank))) for slot in self.command.ranks
        )

    @property
    def logged(self) -> LoggedRun:
        """Data on the run that the log shipper needs."""
        ranks = [rank.rank for rank in self.command.ranks]
        return logged(self.folder, ranks, has_secrets=bool(self.command.secrets))

    def save(self) -> None:
        """Store on disk what a restarted agent must know."""
        write_json(
            self.folder.notes,
            {
                "terminate": self.state.terminate,
                "kill_at_s": self.state.kill_at_s,
                "terminated": self.state.terminated,
                "killed": self.state.killed,
                "slots": sorted(self.state.slots),
                "start_reported": self.start_reported,
                "exits_reported": sorted(self.exits_reported),
                "completed": sorted(self.completed),
                "left": sorted(self.left),
                "library": self.library,
                "stepped": self.stepped,
                "release_as": self.release_as,
            },
        )


def logged(folder: RunFolder, ranks: list[int], *, has_secrets: bool) -> LoggedRun:
    """Return the data on a run that the log shipper needs."""
    return LoggedRun(
        folder.path.parent.name, int(folder.path.name), tuple(ranks), folder, has_secrets=has_secrets
    )


def new_run(state: StateFolder, command: RunCommand) -> Run:
    """Create the folder of an accepted run, and return its record."""
    folder = state.job(command.job_id).run(command.generation)
    folder.control.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder.command, command.model_dump(mode="json"))
    return Run(command, folder, _initial(command))


def read_fence(job: JobFolder) -> Fence:
    """Return the newest generations seen for the job."""
    kept = read_json(job.fence) or {}
    return Fence(run=kept.get("run", 0), stop=kept.get("stop", 0))


def write_fence(job: JobFolder, fence: Fence) -> None:
    """Store the newest generations seen for the job."""
    job.path.mkdir(mode=0o700, exist_ok=True)
    write_json(job.fence, {"run": fence.run, "stop": fence.stop})


def load_runs(state: StateFolder) -> list[Run]:
    """Return every run that an earlier agent left unreleased."""
    runs = []
    for folder in _folders(state):
        if folder.ended.exists():
            continue
        fields = read_json(folder.command)
        try:
            command = RunCommand.model_validate(fields)
        except ValidationError as error:
            _log.error("ignored a run whose command cannot be parsed", run=folder.name, error=str(error))
            continue
        runs.append(_load(folder, command))
    return runs


def unshipped_logs(state: StateFolder) -> list[LoggedRun]:
    """Return the finished runs whose logs the service does not have completely."""
    over = [f for f in _folders(state) if f.ended.exists() and not f.shipped.exists()]
    return [
        logged(
            folder,
            [int(log.stem.removeprefix("rank-")) for log in folder.path.glob("rank-*.log")],
            has_secrets=bool((read_json(folder.command) or {}).get("secrets")),
        )
        for folder in over
    ]


def tidy(state: StateFolder, now_s: float) -> None:
    """Remove files that are no longer needed, except those of unfinished runs and unshipped logs.

    The last generations of each job are kept for `KEEP_FOLDERS_S`, and its fence for `KEEP_FENCE_S`, which is
    much longer than any command can be delayed. `now_s` is Unix time.
    """
    for job in state.jobs():
        _tidy_job(job, state, now_s)
    _remove_halves(state.bundles, now_s)
    _remove_halves(state.path, now_s)
    start_anew(state.launcher_log)


def _remove_halves(folder: Path, now_s: float) -> None:
    """Remove temporary files of writers that were killed."""
    for half in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            if now_s - half.stat().st_mtime > KEEP_FOLDERS_S:
                half.unlink()


def _tidy_job(job: JobFolder, state: StateFolder, now_s: float) -> None:
    folders = job.runs()
    for one in (job.path, *(run.path for run in folders)):
        _remove_halves(one, now_s)
    done = [folder for folder in folders if folder.ended.exists() and folder.shipped.exists()]
    for folder in (one for one in folders if not one.command.exists()):  # its agent was killed
        if now_s - folder.path.stat().st_mtime > KEEP_FOLDERS_S:
            shutil.rmtree(folder.path, ignore_errors=True)
    for folder in done:
        old = now_s - folder.ended.stat().st_mtime > KEEP_FOLDERS_S
        if old or folder not in folders[-KEEP_GENERATIONS:]:
            shutil.rmtree(folder.path, ignore_errors=True)
    for partial in job.path.glob("*.partial"):
        if now_s - partial.stat().st_mtime > KEEP_FOLDERS_S:
            shutil.rmtree(partial, ignore_errors=True)
    if job.runs():
        return
    with contextlib.suppress(FileNotFoundError):
        age_s = now_s - job.fence.stat().st_mtime
        if age_s > KEEP_FOLDERS_S:
            remove_scratch(job, state)
            shutil.rmtree(job.home, ignore_errors=True)
            if not job.output_unsaved.exists():
                _remove_work(job)
        if age_s > KEEP_FENCE_S:
            shutil.rmtree(job.path, ignore_errors=True)


def _remove_work(job: JobFolder) -> None:
    """Remove the working folder and the output folder, after the index files that describe them."""
    for note in (job.output_index, job.bundle):
        note.unlink(missing_ok=True)
    for path in (job.work, job.output):
        shutil.rmtree(path, ignore_errors=True)


def start_anew(log: Path) -> None:
    """Copy a large log to `<name>.1` and truncate it. Its writer appends, and so continues in the empty file."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def _folders(state: StateFolder) -> Iterator[RunFolder]:
    for job in state.jobs():
        yield from job.runs()


def _initial(command: RunCommand) -> RunState:
    return RunState(
        job_id=command.job_id,
        generation=command.generation,
        slots=frozenset(rank.slot for rank in command.ranks),
        live=command.live,
        joins=command.joins,
    )


def _load(folder: RunFolder, command: RunCommand) -> Run:
    notes: dict[str, Any] = read_json(folder.notes) or {}
    phase = Phase.GONE if folder.gone.exists() else Phase.LIVE if folder.started.exists() else Phase.PREPARING
    initial = _initial(command)
    state = replace(
        initial,
        slots=frozenset(notes.get("slots", initial.slots)),
        phase=phase,
        terminate=notes.get("terminate", False),
        kill_at_s=notes.get("kill_at_s"),
        terminated=notes.get("terminated", False),
        killed=notes.get("killed", False),
    )
    return Run(
        command,
        folder,
        state,
        start_reported=notes.get("start_reported", False),
        exits_reported=set(notes.get("exits_reported", [])),
        completed=set(notes.get("completed", [])),
        left=set(notes.get("left", [])),
        library=notes.get("library", False),
        stepped=notes.get("stepped", False),
        release_as=notes.get("release_as", 0),
    )
