"""Handovers of output folders between nodes: this node's part of each, kept on disk until the next order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import structlog
from pydantic import BaseModel, ValidationError

from headway.contract.agents import OrderCommand
from headway.contract.orders import generation_from_json, generation_to_json, member_id
from headway.contract.output import OutputHandover
from worker_agent.host.folders import JobFolder, RunFolder, read_json, write_text
from worker_agent.output.folder_calls import OutputRun
from worker_agent.runs import orders

_log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.05
_WAIT_S: Final = 120.0
"""Seconds for which rank 0 waits for the last save on its previous node, whose saves are retried for 60."""
_LOST_WAIT_S: Final = 3.0
"""The same if members were lost: the previous node may be among them."""


class Handover(BaseModel):
    """This node's part in the order of `generation`; None if rank 0 stays on its node, or the part is over."""

    generation: int
    lost: bool
    part: OutputHandover | None

    @property
    def wait_s(self) -> float:
        """Longest wait for the giving node's mark in seconds."""
        if self.part is None or not self.part.alive:
            return 0.0
        return _LOST_WAIT_S if self.lost else _WAIT_S


def record(job: JobFolder, command: OrderCommand) -> Handover | None:
    """Store this node's part in a new order, and return it; None for an order that is older, or came before."""
    known = current(job)
    if known is not None and known.generation >= command.generation:
        return None
    handover = Handover(generation=command.generation, lost=command.lost, part=command.output)
    _store(job, handover)
    return handover


def current(job: JobFolder) -> Handover | None:
    """Return this node's part in the newest order; None before the first."""
    try:
        kept = read_json(job.handover)
        return None if kept is None else Handover.model_validate(kept)
    except (ValidationError, ValueError) as error:
        _log.error("a handover cannot be parsed", folder=str(job.path), error=str(error))
        return None


def end(job: JobFolder, handover: Handover) -> None:
    """Store that this node's part is over, unless a newer order has replaced it."""
    if current(job) == handover:
        _store(job, handover.model_copy(update={"part": None}))


def allow_writes(folder: RunFolder, generation: int) -> None:
    """Tell the ranks of a run that rank 0 of `generation` may write to the output folder."""
    if folder.control.is_dir():
        write_text(folder.output_ready, generation_to_json(generation), 0o640)


def to_give(job: JobFolder, runs: Sequence[OutputRun]) -> Handover | None:
    """Return the handover for which the next save is the last one; None if this node gives nothing, or not yet."""
    handover = current(job)
    if handover is None or handover.part is None or handover.part.role != "give":
        return None
    stopped = _writer_has_stopped(handover.generation, runs) if handover.part.renumbered else True
    return handover if stopped and _leavers_are_gone(job, runs) else None


def await_giving(
    job: JobFolder, runs: Sequence[OutputRun], wanted: Handover, stopping: threading.Event
) -> bool:
    """Wait until rank 0 writes no more on this node. Return False if a newer order came, or the agent stops."""
    while to_give(job, runs) != wanted:
        if current(job) != wanted or stopping.wait(_LOOK_EVERY_S):
            return False
    return True


def _leavers_are_gone(job: JobFolder, runs: Sequence[OutputRun]) -> bool:
    """Return True if no process is left here that is no member under the newest order."""
    order = orders.read(job.order)
    return order is not None and all(
        run.folder.gone.exists() or run.folder.rank_gone(slot.rank).exists()
        for run in runs
        for slot in run.command.ranks
        if member_id(run.command.generation, slot.rank) not in order.members
    )


def _writer_has_stopped(generation: int, runs: Sequence[OutputRun]) -> bool:
    """Return True if the previous rank 0, which trains on here under another number, has said that it writes no more."""
    return any(_stopped_for(run.folder) >= generation for run in runs) or not any(run.runs for run in runs)


def _stopped_for(folder: RunFolder) -> int:
    try:
        return generation_from_json(folder.output_given.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def _store(job: JobFolder, handover: Handover) -> None:
    write_text(job.handover, handover.model_dump_json())
