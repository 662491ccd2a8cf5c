"""Records of runs: in memory for decisions, on disk for a restarted agent."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from headway.contract.agents import RunCommand
from headway.contract.changes import NO_REASON, ChangeReason, reason_of
from headway.contract.runtime import message_file
from worker_agent.host.folders import JobFolder, LoggedRun, RunFolder, StateFolder, read_json, write_json
from worker_agent.isolation.scratch import remove_scratch
from worker_agent.runs.reconcile import Fence, Phase, RunState

_log = structlog.get_logger()

KEEP_GENERATIONS = 3
KEEP_FENCE_S = 30 * 86400.0
KEEP_FOLDERS_S = 6 * 3600.0
LOG_BYTES = 1 << 20
_STATE_NOTES = ("terminate", "kill_at_s", "terminated", "killed")
"""Fields of `RunState` that a restarted agent reads from the run's notes, besides the slots."""
_RUN_NOTES = ("start_reported", "library", "stepped", "release_as")
_SET_NOTES = ("exits_reported", "completed", "left")
"""Fields of `Run` with a set of ranks. `_RUN_NOTES` are its other fields that are stored."""


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
    why: ChangeReason = NO_REASON
    """Reason of the first stop that gave one."""
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
        ranks = tuple(slot.rank for slot in self.command.ranks)
        return LoggedRun(self.folder, ranks, has_secrets=bool(self.command.secrets))

    def explain(self, why: ChangeReason | None) -> None:
        """Note why the run is stopped, unless an earlier stop has said so."""
        if why is not None and not self.state.ending:
            self.why = why

    def save(self) -> None:
        """Store on disk what a restarted agent must know."""
        notes = {name: getattr(self.state, name) for name in _STATE_NOTES}
        notes |= {name: getattr(self, name) for name in _RUN_NOTES}
        sets = {name: sorted(getattr(self, name)) for name in _SET_NOTES}
        notes |= {"why": asdict(self.why), "slots": sorted(self.state.slots)}
        write_json(self.folder.notes, {**notes, **sets})


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
    return [
        LoggedRun(
            folder,
            tuple(int(log.stem.removeprefix("rank-")) for log in folder.path.glob("rank-*.log")),
            has_secrets=bool((read_json(folder.command) or {}).get("secrets")),
        )
        for folder in _folders(state)
        if folder.ended.exists() and not folder.shipped.exists()
    ]


def tidy(state: StateFolder, now_s: float) -> None:
    """Remove files that are no longer needed, except those of unfinished runs and unshipped logs.

    The last generations of each job are kept for `KEEP_FOLDERS_S`, and its fence for `KEEP_FENCE_S`, which is
    much longer than any command can be delayed. `now_s` is Unix time.
    """
    for job in state.jobs():
        _tidy_job(job, state, now_s)
    _remove_temporary_files(state.bundles, now_s)
    _remove_temporary_files(state.path, now_s)
    rotate(state.launcher_log)


def _remove_temporary_files(folder: Path, now_s: float) -> None:
    """Remove temporary files of writers that were killed."""
    for temporary in folder.glob(".*.tmp"):
        if _is_old(temporary, now_s):
            temporary.unlink(missing_ok=True)


def _is_old(path: Path, now_s: float) -> bool:
    with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
        return now_s - path.stat().st_mtime > KEEP_FOLDERS_S
    return False


def _tidy_job(job: JobFolder, state: StateFolder, now_s: float) -> None:
    folders = job.runs()
    for one in (job.path, *(run.path for run in folders)):
        _remove_temporary_files(one, now_s)
    done = [folder for folder in folders if folder.ended.exists() and folder.shipped.exists()]
    old = [folder.path for folder in done if _is_old(folder.ended, now_s)]
    old += [folder.path for folder in done if folder not in folders[-KEEP_GENERATIONS:]]
    # A run without a command, or a partly unpacked bundle: the agent was killed while it wrote it.
    halves = [
        *(folder.path for folder in folders if not folder.command.exists()),
        *job.path.glob("*.partial"),
    ]
    for path in [*old, *(half for half in halves if _is_old(half, now_s))]:
        shutil.rmtree(path, ignore_errors=True)
    if job.runs():
        return
    with contextlib.suppress(FileNotFoundError):
        age_s = now_s - job.fence.stat().st_mtime
        if age_s > KEEP_FOLDERS_S:
            remove_scratch(job, state)
            job.after_ready.unlink(missing_ok=True)
            shutil.rmtree(job.home, ignore_errors=True)
            if not job.output_unsaved.exists():
                _remove_work(job)
        if age_s > KEEP_FENCE_S:
            shutil.rmtree(job.path, ignore_errors=True)


def _remove_work(job: JobFolder) -> None:
    """Remove the working folder and the output folder, after the index files that describe them."""
    for index in (job.output_index, job.bundle):
        index.unlink(missing_ok=True)
    for path in (job.work, job.output):
        shutil.rmtree(path, ignore_errors=True)


def rotate(log: Path) -> None:
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
    slots = frozenset(notes.get("slots", initial.slots))
    kept = {name: notes[name] for name in _STATE_NOTES if name in notes}
    fields = {name: notes[name] for name in _RUN_NOTES if name in notes}
    fields |= {name: set(notes[name]) for name in _SET_NOTES if name in notes}
    fields["why"] = reason_of(notes.get("why"))
    return Run(command, folder, replace(initial, slots=slots, phase=phase, **kept), **fields)
