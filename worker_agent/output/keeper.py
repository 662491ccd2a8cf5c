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
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import structlog
from pydantic import ValidationError

from headway.contract.agents import OutputReport, RunCommand
from headway.contract.orders import member_id
from headway.contract.output import Version
from headway.errors import HeadwayError
from worker_agent.host.folders import JobFolder, RunFolder, read_json, write_text
from worker_agent.link.service_api import Backoff
from worker_agent.output.calling import Caller
from worker_agent.output.child import ChildReply
from worker_agent.output.places import bundle_of, output_folder, root_and_inner, written_elsewhere
from worker_agent.output.values import Index, Outcome, Request
from worker_agent.runs import orders

_log = structlog.get_logger()

LAST_TRIES_S: Final = 60.0
"""Seconds for which the last save is retried. The slots are held meanwhile."""
_LOOK_EVERY_S: Final = 1.0
_MOST_PATHS: Final = 20
"""Maximum number of paths in one report."""
OutputEvent: TypeAlias = Literal["saved", "fetched", "failed", "lost", "conflict", "elsewhere"]


class OutputNotMoved(HeadwayError):
    """Raised when the folder could not be fetched or saved. `permanent` means that a retry fails in the same way."""

    def __init__(self, problem: str, *, permanent: bool = False) -> None:
        self.permanent = permanent
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class _Part:
    """Run of a job on this node, until it is released."""

    command: RunCommand
    folder: RunFolder

    @property
    def runs(self) -> bool:
        """True if the run has processes on this node."""
        return self.folder.started.exists() and not self.folder.gone.exists()


@dataclass(slots=True)
class _Job:
    """Runs of one job on this node."""

    parts: dict[int, _Part] = field(default_factory=dict)
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
        self._caller = caller
        self._report = report
        self._node = node
        self._stopping = stopping
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition()

    def add(self, command: RunCommand, folder: RunFolder) -> None:
        """Register a run that was accepted or adopted."""
        with self._changed:
            job = self._jobs.setdefault(command.job_id, _Job(due_s=time.monotonic() + command.output.every_s))
            job.parts[command.generation] = _Part(command, folder)

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
        part = _Part(command, folder)
        job = folder.job
        if not self._wait_for_older(part) or (command.generation == 1 and not job.output_index.exists()):
            return
        with self._lock_of(command.job_id):
            outcome = self._call(part, "fetch", self._version([part], command.generation), last=True)
        if outcome.conflicts:
            self._report_output(part, "conflict", paths=outcome.conflicts)
        if outcome.changed:
            self._report_output(part, "fetched", outcome=outcome)

    def is_settled(
        self, command: RunCommand, folder: RunFolder, *, wanted: bool, wake: Callable[[], None]
    ) -> bool:
        """Return True if the last save of a run whose ranks have ended is over. The first call starts it.

        `wake` is called in another thread when the save is over. If `wanted` is False, the service does not
        want the run here, and nothing is saved.
        """
        part = _Part(command, folder)
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

    def _due(self, now_s: float) -> list[tuple[_Part, _Job]]:
        """Return the runs to save now. A job whose folder is in use is saved later."""
        found = []
        with self._changed:
            for job in self._jobs.values():
                running = [part for _, part in sorted(job.parts.items()) if part.runs]
                if running and now_s >= job.due_s and not job.lock.locked():
                    job.due_s = now_s + running[-1].command.output.every_s
                    found.append((running[-1], job))
        return found

    def _save_now(self, part: _Part, job: _Job) -> None:
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

    def _settle(self, part: _Part, *, wanted: bool) -> bool:
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

    def _save_last(self, part: _Part) -> bool:
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

    def _save(self, part: _Part, *, last: bool) -> Outcome | None:
        """Save the folder. Return None if it is empty and was never saved."""
        job = part.folder.job
        root, inner = root_and_inner(part.command, part.folder)
        if not job.output_index.exists() and part.command.output.dir != "." and _is_empty(root / inner):
            return None
        parts = self._parts_of(part)
        return self._call(part, "save", self._version(parts, _lineage(job, parts)), last=last)

    def _call(self, part: _Part, do: Literal["fetch", "save"], version: Version, *, last: bool) -> Outcome:
        """Run a child, store the new index, and return the outcome.

        Raises:
            OutputNotMoved: the child failed.
        """
        job = part.folder.job
        first = part if do == "fetch" else self._parts_of(part)[0]
        request = Request(
            do=do,
            node=self._node,
            generation=first.command.generation,
            joined=first.command.joins,
            version=version,
            max_bytes=part.command.output.max_bytes,
            last=last,
            now_s=time.time(),
            index=_index_of(job),
            bundle=bundle_of(job, root_and_inner(part.command, part.folder)[1]),
        )
        reply: ChildReply = self._caller.call(part.command, part.folder, request)
        if reply.outcome is None:
            raise OutputNotMoved(_sentence(reply.error), permanent=reply.permanent)
        if reply.outcome.index is not None:
            write_text(job.output_index, reply.outcome.index.model_dump_json())
        return reply.outcome

    def _wait_for_older(self, part: _Part) -> bool:
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

    def _version(self, parts: list[_Part], lineage: int) -> Version:
        """Return the version of files that these runs write: their current generation, and their lowest rank in it.

        Newcomers without an order to join yet get a version below that of the ranks that train.
        """
        gangs = [part.command.generation for part in parts if not part.command.joins]
        generation = max(gangs, default=lineage - 1)
        rank = min(slot.rank for part in parts for slot in part.command.ranks)
        order = orders.read(parts[0].folder.job.order)
        if order is None or order.generation < max(generation, lineage):
            return generation, rank
        ids = (member_id(part.command.generation, slot.rank) for part in parts for slot in part.command.ranks)
        ranks = [order.members[one] for one in ids if one in order.members]
        if not ranks:
            return max(generation, order.generation - 1), rank
        return order.generation, min(ranks)

    def _parts_of(self, part: _Part) -> list[_Part]:
        """Return the runs of a job on this node, oldest first."""
        with self._changed:
            job = self._jobs.get(part.command.job_id)
            found = {} if job is None else dict(job.parts)
        return [one for _, one in sorted({**found, part.command.generation: part}.items())]

    def _others_run(self, part: _Part) -> bool:
        return any(other.runs for other in self._parts_of(part) if other != part)

    def _lock_of(self, job_id: str) -> threading.Lock:
        with self._changed:
            job = self._jobs.get(job_id)
        return threading.Lock() if job is None else job.lock

    def _report_elsewhere(self, part: _Part) -> None:
        try:
            paths = written_elsewhere(part.command, part.folder)
        except OSError as error:
            _log.warning("the working folder cannot be scanned", run=part.folder.name, error=str(error))
            return
        if paths:
            self._report_output(part, "elsewhere", paths=sorted(paths), files=len(paths))

    def _report_output(self, part: _Part, what: OutputEvent, **fields: Any) -> None:
        outcome: Outcome | None = fields.pop("outcome", None)
        paths: list[str] = fields.pop("paths", [])
        counts = outcome.model_dump(include={"files", "size_bytes", "moved_bytes"}) if outcome else {}
        ids: dict[str, Any] = {"job_id": part.command.job_id, "generation": part.command.generation}
        shown = [path if path.isprintable() else ascii(path)[1:-1] for path in paths[:_MOST_PATHS]]
        self._report(partial(OutputReport, **ids, what=what, paths=shown, **counts, **fields))
        _log.info("output folder", run=part.folder.name, what=what, paths=len(paths), **counts)


def _lineage(job: JobFolder, parts: list[_Part]) -> int:
    index = _index_of(job)
    return parts[0].command.generation if index is None else index.lineage


def _index_of(job: JobFolder) -> Index | None:
    """Return the index of the folder, or None if there is none or if it cannot be parsed."""
    try:
        kept = read_json(job.output_index)
        return None if kept is None else Index.model_validate(kept)
    except (ValidationError, ValueError) as error:
        _log.error("the index of an output folder cannot be parsed", folder=str(job.path), error=str(error))
        return None


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return True


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
