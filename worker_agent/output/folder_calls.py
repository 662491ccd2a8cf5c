"""Calls of the child process for the output folder of a job, and what this node knows of the folder between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from pydantic import ValidationError

from headway.contract.agents import RunCommand
from headway.contract.orders import member_id
from headway.contract.output import OutputHandover, Version
from headway.errors import HeadwayError
from worker_agent.host.folders import JobFolder, RunFolder, read_json, write_text
from worker_agent.output.calling import Caller
from worker_agent.output.child import ChildReply
from worker_agent.output.places import bundle_of, root_and_inner
from worker_agent.output.values import Index, Outcome, Request
from worker_agent.runs import orders
from worker_agent.runs.reconcile import failed

_log = structlog.get_logger()

_LAST_RANK: Final = 1_000_000
"""Rank in the version of files that newcomers wrote before they joined: those of every other rank win."""


class OutputNotMoved(HeadwayError):
    """Raised when the folder could not be fetched or saved. `permanent` means that a retry fails in the same way."""

    def __init__(self, problem: str, *, permanent: bool = False) -> None:
        self.permanent = permanent
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class OutputRun:
    """Run of a job on this node, until it is released."""

    command: RunCommand
    folder: RunFolder

    @property
    def runs(self) -> bool:
        """True if the run has processes on this node."""
        return self.folder.started.exists() and not self.folder.gone.exists()


class FolderCalls:
    """Calls of the child process, one at a time for each job. `node` is the name of this node in storage.

    The `runs` of a call are those of the job on this node, oldest first.
    """

    def __init__(self, caller: Caller, node: str) -> None:
        self._caller = caller
        self._node = node

    def fetch(self, run: OutputRun) -> Outcome:
        """Bring the folder to what older generations saved.

        Raises:
            OutputNotMoved, OSError, ValueError: it could not be done.
        """
        return self._call([run], run, "fetch", _version([run], run.command.generation), last=True)

    def copy(self, run: OutputRun, predecessor: str) -> Outcome:
        """Fetch the files of a job that this one started after.

        Raises:
            OutputNotMoved, OSError, ValueError: it could not be done.
        """
        generation = run.command.generation
        request = Request(
            do="copy",
            node=self._node,
            generation=generation,
            joined=False,
            version=(generation, 0),
            max_bytes=run.command.output.max_bytes,
            now_s=time.time(),
        )
        reply = self._caller.call(run.command, run.folder, request, predecessor=predecessor)
        if reply.outcome is None:
            raise OutputNotMoved(_sentence(reply.error), permanent=reply.permanent)
        return reply.outcome

    def save(
        self, runs: Sequence[OutputRun], run: OutputRun, *, last: bool, handed_over: int | None
    ) -> Outcome | None:
        """Save the folder. Return None if it is empty and was never saved.

        With `last`, no rank writes any more, and the node of rank 0 leaves the mark of a handover. `handed_over` is the
        generation of a mark that is due although other ranks train on here.

        Raises:
            OutputNotMoved, OSError, ValueError: it could not be done.
        """
        version = _version(runs, _lineage(run.folder.job, runs))
        rank_0_ends = last and run.command.live and version[1] == 0
        if handed_over is None and _never_used(run):
            if rank_0_ends and _has_lost_ranks(runs):
                self._tell_successors(runs, run, version)
            return None
        mark = version[0] if handed_over is None and rank_0_ends else handed_over
        return self._call(runs, run, "save", version, last=last or mark is not None, mark=mark)

    def _tell_successors(self, runs: Sequence[OutputRun], run: OutputRun, version: Version) -> None:
        """Leave the mark that this node has no files, for ranks elsewhere that go on without its ranks.

        A failure is only logged: they wait a moment for the mark, and lose nothing.
        """
        try:
            self._call(runs, run, "save", version, last=True, mark=version[0])
        except (OutputNotMoved, OSError, ValueError) as error:
            _log.warning(
                "the end of an unused output folder is not marked", run=run.folder.name, error=str(error)
            )

    def take(
        self, runs: Sequence[OutputRun], run: OutputRun, generation: int, part: OutputHandover, wait_s: float
    ) -> Outcome:
        """Bring the folder to what the previous node of rank 0 saved last, for which this waits up to `wait_s` seconds.

        Raises:
            OutputNotMoved, OSError, ValueError: it could not be done.
        """
        index = _index_of(run.folder.job)
        own: Version = (part.before, _LAST_RANK)
        if index is not None and index.version[0] == part.before and index.version[1] > 0:
            own = index.version
        more = {"mark": part.before, "wait_s": wait_s, "own_version": own, "fence": not part.stays}
        return self._call(runs, run, "take", (generation, 0), last=True, **more)

    def _call(
        self,
        runs: Sequence[OutputRun],
        run: OutputRun,
        do: Literal["fetch", "save", "take"],
        version: Version,
        *,
        last: bool,
        **more: Any,
    ) -> Outcome:
        job = run.folder.job
        request = Request(
            do=do,
            node=self._node,
            generation=runs[0].command.generation,
            joined=runs[0].command.joins,
            version=version,
            max_bytes=run.command.output.max_bytes,
            last=last,
            now_s=time.time(),
            index=_index_of(job),
            bundle=bundle_of(job, root_and_inner(run.command, run.folder)[1]),
            **more,
        )
        reply: ChildReply = self._caller.call(run.command, run.folder, request)
        if reply.outcome is None:
            raise OutputNotMoved(_sentence(reply.error), permanent=reply.permanent)
        if reply.outcome.index is not None:
            write_text(job.output_index, reply.outcome.index.model_dump_json())
        return reply.outcome


def _version(runs: Sequence[OutputRun], lineage: int) -> Version:
    """Return the version of files that these runs write: their current generation, and their lowest rank in it.

    Newcomers without an order to join yet get a version below that of the ranks that train.
    """
    gangs = [run.command.generation for run in runs if not run.command.joins]
    generation = max(gangs, default=lineage - 1)
    rank = min(slot.rank for run in runs for slot in run.command.ranks)
    order = orders.read(runs[0].folder.job.order)
    if order is None or order.generation < max(generation, lineage):
        return generation, rank
    ids = (member_id(run.command.generation, slot.rank) for run in runs for slot in run.command.ranks)
    ranks = [order.members[one] for one in ids if one in order.members]
    if not ranks:
        return max(generation, order.generation - 1), rank
    return order.generation, min(ranks)


def _lineage(job: JobFolder, runs: Sequence[OutputRun]) -> int:
    index = _index_of(job)
    return runs[0].command.generation if index is None else index.lineage


def _index_of(job: JobFolder) -> Index | None:
    """Return the index of the folder, or None if there is none or if it cannot be parsed."""
    try:
        kept = read_json(job.output_index)
        return None if kept is None else Index.model_validate(kept)
    except (ValidationError, ValueError) as error:
        _log.error("the index of an output folder cannot be parsed", folder=str(job.path), error=str(error))
        return None


def _has_lost_ranks(runs: Sequence[OutputRun]) -> bool:
    """Return True if a rank of these runs ended by a signal or an error, so that others may go on without it."""
    ends = [read_json(run.folder.exit(slot.rank)) for run in runs for slot in run.command.ranks]
    return any(failed(end.get("exit_code"), completed=False) for end in ends if end is not None)


def _never_used(run: OutputRun) -> bool:
    root, inner = root_and_inner(run.command, run.folder)
    return (
        not run.folder.job.output_index.exists() and run.command.output.dir != "." and _is_empty(root / inner)
    )


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return True


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
