"""Ranks hang: say so with where their threads are, and start the job anew from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headway.contract.agents import RankEntry, RankMessage, RanksHung
from headway.contract.jobs import JobState, Reason
from headway.contract.runtime import Progress
from service.domain.jobs import Job
from service.domain.membership import Crew
from service.usecases.generations import fail_rank
from service.usecases.ports import Transaction
from service.usecases.records import NodeRecord
from service.usecases.transition import record

_MOST_CHARACTERS = 16_384
"""Of all stacks in one event. The logs have them in full."""
_SHOWN_RANKS = 4
_SHOWN_LINES = 8
"""Of each rank in the event's text: the innermost frames of its main thread come first."""


async def ranks_hung(
    tx: Transaction, node: NodeRecord, job: Job, crew: Crew, entry: RanksHung, now: datetime
) -> Job:
    """Ranks on the node have taken no step for long. Nobody knows which rank keeps the others waiting, so all of them start
    anew, each with its stacks in its log.

    Nothing happens if these are not who trains now, or if the job is being stopped or changed by an order already: a
    stop has its grace, an order its deadline.
    """
    trains = job.state is JobState.RUNNING or (job.switching is not None and not job.switching.ordered)
    running = {(one.born_generation, one.node_id) for one in crew.running}
    if not trains or (entry.generation, node.id) not in running:
        return job
    message = f"{_what_was_seen(entry)} (node {node.name})"
    data = {
        "node": node.name,
        "silent_s": entry.silent_s,
        "usual_s": entry.usual_s,
        "stacks": _bounded(entry.stacks),
    }
    where = _where(entry)
    await record(
        tx,
        job,
        "hung",
        reason=Reason.HUNG,
        message="\n".join([message, *where]),
        now=now,
        data=data,
    )
    return await fail_rank(
        tx,
        job,
        reason=Reason.HUNG,
        message=f"{message}; the logs say where its threads were",
        now=now,
        dump_stacks=True,
    )


def without_outlived(entries: Sequence[RankEntry]) -> list[RankEntry]:
    """The entries of a report but for ranks of which it says later on that they train: they hung while nobody could be told."""
    kept: list[RankEntry] = []
    train: set[tuple[str, int]] = set()
    for entry in reversed(entries):
        start = entry.job_id, entry.generation
        if isinstance(entry, RankMessage) and entry.message.get("type") == Progress.TYPE:
            train.add(start)
        if not (isinstance(entry, RanksHung) and start in train):
            kept.append(entry)
    return kept[::-1]


def _what_was_seen(entry: RanksHung) -> str:
    if entry.usual_s > 0:
        return f"no step for {_seconds(entry.silent_s)}, where one takes {_seconds(entry.usual_s)} as a rule"
    return f"no sign of training for {_seconds(entry.silent_s)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def _where(entry: RanksHung) -> list[str]:
    """The first lines of each rank's stacks: where its main thread is."""
    return [line for stacks in entry.stacks[:_SHOWN_RANKS] for line in stacks.splitlines()[:_SHOWN_LINES]]


def _bounded(stacks: list[str]) -> list[str]:
    """As much of each as there is room for."""
    each = _MOST_CHARACTERS // max(1, len(stacks))
    return [one[:each] for one in stacks]
