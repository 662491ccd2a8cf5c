"""Fetching and saving of the output folders of this node's jobs, and the reports on both.

A folder is fetched before the ranks of a generation start, unless ranks of the job already run on this node.
It is saved every `output.every` while they run, and once more when they have ended. The run is released only
after that, so that the next generation finds all files on any node. One call at a time works on the folder of
a job.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import structlog

from headway.contract.agents import OrderCommand, OutputReport, RunCommand
from worker_agent.host.folders import RunFolder
from worker_agent.link.service_api import Backoff
from worker_agent.output import handover
from worker_agent.output.calling import Caller
from worker_agent.output.folder_calls import FolderCalls, OutputNotMoved, OutputRun
from worker_agent.output.handover import Handover
from worker_agent.output.places import output_folder, written_elsewhere
from worker_agent.output.values import Outcome

_log = structlog.get_logger()

LAST_TRIES_S: Final = 60.0
"""Seconds for which the last save is retried. The slots are held meanwhile."""
_LOOK_EVERY_S: Final = 1.0
_MOST_PATHS: Final = 20
"""Maximum number of paths in one report."""
OutputEvent: TypeAlias = Literal["saved", "fetched", "failed", "lost", "conflict", "elsewhere", "stale"]


@dataclass(slots=True)
class _Job:
    """Runs of one job on this node."""

    parts: dict[int, OutputRun] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock held while a child works on the folder."""
    settling: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    """Generations whose last save is over; `settling` holds those whose last save has begun."""
    due_s: float = 0.0
    failing: bool = False
    """True if the last save failed, and the service was informed."""


class Outputs:
    """Output folders of this node. Thread-safe. `node` is the name of this node in storage."""

    def __init__(
        self,
        caller: Caller,
        report: Callable[[Callable[..., OutputReport]], None],
        node: str,
        stopping: threading.Event,
    ) -> None:
        self._calls = FolderCalls(caller, node)
        self._report = report
        self._stopping = stopping
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition()

    def add(self, command: RunCommand, folder: RunFolder) -> None:
        """Register a run that was accepted or adopted."""
        with self._changed:
            job = self._jobs.setdefault(command.job_id, _Job(due_s=time.monotonic() + command.output.every_s))
            job.parts[command.generation] = OutputRun(command, folder)

    def released(self, command: RunCommand) -> None:
        """Remove a run, so that the next generation of its job can use the folder."""
        with self._changed:
            job = self._jobs.get(command.job_id)
            if job is not None:
                job.parts.pop(command.generation, None)
                if not job.parts:
                    del self._jobs[command.job_id]
            self._changed.notify_all()

    def fetch(self, command: RunCommand, folder: RunFolder) -> None:
        """Bring the output folder to the state that earlier generations saved, after they have left this node.

        Raises:
            OutputNotMoved: storage does not answer, or the disk is full.
        """
        part = OutputRun(command, folder)
        job = folder.job
        if not self._wait_for_older(part) or (command.generation == 1 and not job.output_index.exists()):
            return
        with self._lock_of(command.job_id):
            outcome = self._calls.fetch(part)
        self._report_fetched(part, outcome)

    def fetch_predecessors(self, command: RunCommand, folder: RunFolder) -> None:
        """Fetch the files of the jobs that this one started after, once for each node.

        Raises:
            OutputNotMoved: storage does not answer, or the disk is full.
            OSError: the process that fetches them fails.
        """
        job = folder.job
        if not command.after or job.after_ready.exists():
            return
        with self._lock_of(command.job_id):
            for one in command.after:
                outcome = self._calls.copy(OutputRun(command, folder), one)
                _log.info(
                    "files of a predecessor fetched", job=command.job_id, after=one, files=outcome.files
                )
        job.after_ready.touch()

    def is_settled(
        self, command: RunCommand, folder: RunFolder, *, wanted: bool, wake: Callable[[], None]
    ) -> bool:
        """Return True if the last save of a run whose ranks have ended is over. The first call starts it.

        `wake` is called in another thread when the save is over. If `wanted` is False, the service does not
        want the run here, and nothing is saved.
        """
        part = OutputRun(command, folder)
        if not folder.started.exists():
            return True
        with self._changed:
            job = self._jobs[command.job_id]
            if command.generation in job.settled:
                return True
            if command.generation in job.settling:
                return False
            job.settling.add(command.generation)

        def body() -> None:
            if self._settle(part, wanted=wanted):
                with self._changed:
                    job.settled.add(command.generation)
                wake()

        threading.Thread(target=body, daemon=True, name=f"output of {folder.name}").start()
        return False

    def ordered(self, command: OrderCommand) -> None:
        """Begin this node's part in an order: give the output folder, take it, or go on with it."""
        runs = self._runs_of(command.job_id)
        if runs and (ordered := handover.record(runs[0].folder.job, command)) is not None:
            self._follow(runs, ordered)

    def resume(self, folder: RunFolder) -> None:
        """Go on with the part in an order that an earlier process of the agent began."""
        runs, ordered = self._runs_of(folder.job_id), handover.current(folder.job)
        if ordered is not None and runs and runs[-1].folder == folder:
            self._follow(runs, ordered)

    def hurry(self) -> None:
        """Save every folder soon, because the host will be taken away."""
        with self._changed:
            for job in self._jobs.values():
                job.due_s = 0.0

    def run(self) -> None:
        """Save folders periodically until the agent stops."""
        while not self._stopping.wait(_LOOK_EVERY_S):
            for part, job in self._due(time.monotonic()):
                threading.Thread(target=self._save_now, args=[part, job], daemon=True).start()

    def _due(self, now_s: float) -> list[tuple[OutputRun, _Job]]:
        """Return the runs to save now. A job whose folder is in use is saved later."""
        found = []
        with self._changed:
            for job in self._jobs.values():
                running = [part for _, part in sorted(job.parts.items()) if part.runs]
                if running and now_s >= job.due_s and not job.lock.locked():
                    job.due_s = now_s + running[-1].command.output.every_s
                    found.append((running[-1], job))
        return found

    def _save_now(self, part: OutputRun, job: _Job) -> None:
        """Save the folder of a running job; the body of a thread."""
        try:
            with job.lock:
                if not part.runs:
                    return  # its last save follows
                outcome = self._save(part, last=False)
            left_out = outcome is not None and bool(outcome.left_out)
            if outcome is not None and left_out and not job.failing:
                self._report_output(part, "failed", message=outcome.problem, paths=outcome.left_out)
            job.failing = left_out
        except (OutputNotMoved, OSError, ValueError) as error:
            _log.warning("the output folder is not saved", run=part.folder.name, error=str(error))
            if not job.failing:
                job.failing = True
                self._report_output(part, "failed", message=str(error))

    def _follow(self, runs: list[OutputRun], ordered: Handover) -> None:
        takes = ordered.part is not None and ordered.part.role == "take"
        if not takes:
            for run in runs:
                handover.allow_writes(run.folder, ordered.generation)
        if ordered.part is not None:
            body = self._take if takes else self._give
            threading.Thread(target=body, args=[runs[-1], ordered], daemon=True).start()

    def _give(self, part: OutputRun, ordered: Handover) -> None:
        """Save the folder for the node that takes over, once rank 0 writes no more here; the body of a thread."""
        runs = self._parts_of(part)
        if handover.await_giving(part.folder.job, runs, ordered, self._stopping) and any(
            one.runs for one in runs
        ):
            self._save_last(part)  # otherwise the last save of the run does so

    def _take(self, part: OutputRun, ordered: Handover) -> None:
        """Bring the folder here to what rank 0's previous node saved last, then let rank 0 write; the body of a thread."""
        job, problem = part.folder.job, "its last save did not arrive."
        give_up_s = time.monotonic() + ordered.wait_s
        backoff = Backoff(random.Random())
        while handover.current(job) == ordered and ordered.part is not None:
            left_s = max(0.0, give_up_s - time.monotonic())
            try:
                with self._lock_of(part.command.job_id):
                    runs = self._parts_of(part)
                    outcome = self._calls.take(runs, part, ordered.generation, ordered.part, left_s)
            except (OutputNotMoved, OSError, ValueError) as error:
                problem = str(error)
                if left_s > 0 and not self._stopping.wait(backoff.next_s()):
                    continue
            else:
                self._report_fetched(part, outcome)
                if outcome.marked:
                    problem = ""
            break
        if self._stopping.is_set() or handover.current(job) != ordered:
            return
        if problem:
            self._report_output(part, "stale", message=problem)
        for run in self._parts_of(part):
            handover.allow_writes(run.folder, ordered.generation)
        handover.end(job, ordered)

    def _settle(self, part: OutputRun, *, wanted: bool) -> bool:
        """Save the remaining files of a run, and report files that it wrote elsewhere.

        Return False if the agent stops first.
        """
        try:
            if wanted and not self._save_last(part):
                return False
            self._report_elsewhere(part)
        except Exception as error:  # noqa: BLE001  # the run must be released after any error
            _log.exception("the output folder could not be saved", run=part.folder.name)
            self._report_output(part, "lost", message=str(error))
        return True

    def _save_last(self, part: OutputRun) -> bool:
        """Save the folder with retries, or report that it could not be saved.

        Return False if the agent stops first.
        """
        backoff = Backoff(random.Random())
        give_up_s = time.monotonic() + LAST_TRIES_S
        job = part.folder.job
        while True:
            try:
                with self._lock_of(part.command.job_id):
                    outcome = self._save(part, last=not self._others_run(part))
            except (OutputNotMoved, OSError, ValueError) as error:
                wait_s = backoff.next_s()
                permanent = isinstance(error, OutputNotMoved) and error.permanent
                if permanent or time.monotonic() + wait_s > give_up_s:
                    job.output_unsaved.touch()
                    folder = output_folder(part.command, part.folder)
                    self._report_output(
                        part, "lost", message=f"{error} The files are in {folder} on that node."
                    )
                    return True
                if self._stopping.wait(wait_s):
                    return False
            else:
                job.output_unsaved.unlink(missing_ok=True)
                if outcome is not None and (outcome.changed or outcome.odd):
                    self._report_output(part, "saved", outcome=outcome, paths=outcome.odd, last=True)
                if outcome is not None and outcome.left_out:
                    folder = output_folder(part.command, part.folder)
                    message = f"{outcome.problem} They are in {folder} on that node."
                    self._report_output(part, "lost", message=message, paths=outcome.left_out)
                return True

    def _save(self, part: OutputRun, *, last: bool) -> Outcome | None:
        """Save the folder. Return None if it is empty and was never saved."""
        job, runs = part.folder.job, self._parts_of(part)
        given = handover.to_give(job, runs)
        mark = None if given is None or given.part is None else given.part.before
        outcome = self._calls.save(runs, part, last=last, handed_over=mark)
        if given is not None:
            handover.end(job, given)
        return outcome

    def _wait_for_older(self, part: OutputRun) -> bool:
        """Wait until older runs have left the folder. Return False if newcomers share it with ranks that train."""
        command = part.command

        def older() -> bool:
            job = self._jobs.get(command.job_id)
            return job is not None and any(generation < command.generation for generation in job.parts)

        with self._changed:
            if command.joins and older():
                return False
            while older():
                self._changed.wait(_LOOK_EVERY_S)
        return True

    def _runs_of(self, job_id: str) -> list[OutputRun]:
        """Return the runs of a job on this node, oldest first."""
        with self._changed:
            job = self._jobs.get(job_id)
            return [] if job is None else [one for _, one in sorted(job.parts.items())]

    def _parts_of(self, part: OutputRun) -> list[OutputRun]:
        """Return the runs of a job on this node with this one, oldest first."""
        runs = {one.command.generation: one for one in self._runs_of(part.command.job_id)}
        return [one for _, one in sorted({**runs, part.command.generation: part}.items())]

    def _others_run(self, part: OutputRun) -> bool:
        return any(other.runs for other in self._parts_of(part) if other != part)

    def _lock_of(self, job_id: str) -> threading.Lock:
        with self._changed:
            job = self._jobs.get(job_id)
        return threading.Lock() if job is None else job.lock

    def _report_elsewhere(self, part: OutputRun) -> None:
        try:
            paths = written_elsewhere(part.command, part.folder)
        except OSError as error:
            _log.warning("the working folder cannot be scanned", run=part.folder.name, error=str(error))
            return
        if paths:
            self._report_output(part, "elsewhere", paths=sorted(paths), files=len(paths))

    def _report_fetched(self, part: OutputRun, outcome: Outcome) -> None:
        if outcome.conflicts:
            self._report_output(part, "conflict", paths=outcome.conflicts)
        if outcome.changed:
            self._report_output(part, "fetched", outcome=outcome)

    def _report_output(self, part: OutputRun, what: OutputEvent, **fields: Any) -> None:
        outcome: Outcome | None = fields.pop("outcome", None)
        paths: list[str] = fields.pop("paths", [])
        counts = outcome.model_dump(include={"files", "size_bytes", "moved_bytes"}) if outcome else {}
        ids: dict[str, Any] = {"job_id": part.command.job_id, "generation": part.command.generation}
        shown = [path if path.isprintable() else ascii(path)[1:-1] for path in paths[:_MOST_PATHS]]
        self._report(partial(OutputReport, **ids, what=what, paths=shown, **counts, **fields))
        _log.info("output folder", run=part.folder.name, what=what, paths=len(paths), **counts)
