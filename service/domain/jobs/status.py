"""Explanation of a job's present state in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headway.contract.run_facts import Lingering, Standstill
from headway.contract.spec import JobSpec, Resize
from headway.contract.values.listing import some_of
from headway.contract.values.quantities import duration
from headway.contract.views.jobs import JobProgress, JobState, still_applies

_NAMED = 3
"""Pairs of hosts, threads or nodes that a sentence names."""
UNTAKEN_AFTER_S = 10.0
"""Age in seconds from which a command that its agent has not taken is told to users."""


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The last decision about a job: what the round did, and why. `starts_at`: expected start of a job that waits."""

    action: str
    message: str
    starts_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class UntakenCommands:
    """Commands about a job that agents of live nodes have not taken. `since`: the creation of the oldest."""

    nodes: tuple[str, ...]
    since: datetime


def untaken_text(untaken: UntakenCommands, now: datetime) -> str:
    """Return the sentence about commands that do not arrive, so that nothing about the job changes."""
    age_s = max(0.0, (now - untaken.since).total_seconds())
    return (
        f"no command about it has reached {some_of(untaken.nodes, _NAMED)} for {duration(age_s)}: the command queue (Redis) "
        "refuses writes, or the agent does not read it; headway doctor says more"
    )


def present_reason(
    *, spec: JobSpec, state: JobState, size: int, pinned: int | None, message: str, last: LastDecision | None
) -> str:
    """Return the reason for a job's present state. `message` is that of its last event, which may be old.

    A job that neither waits nor runs is as its last event left it. A decision counts only while the job is
    still in the state that the decision left it in: a decision to wait is void for a running job, any other
    one for a waiting job.
    """
    if state is JobState.PENDING:
        return last.message if last is not None and still_applies(state, last.action) else message
    if state is not JobState.RUNNING:
        return message
    slots = "1 slot" if size == 1 else f"{size} slots"
    if pinned == size:
        return f"{slots}, fixed by you"
    if pinned is None and spec.allowed_sizes() == (size,):
        return f"{slots}, the only size in its job file"
    if pinned is None and spec.elastic.resize is Resize.NEVER:
        return f"{slots}: its size never changes while it runs (elastic.resize: never)"
    if last is None or not still_applies(state, last.action):
        return message
    if last.action == "keep" and pinned is None and size == max(spec.allowed_sizes()):
        return f"{slots}, the most that its job file allows"
    return last.message


def standstill_text(standstill: Standstill, silent_s: float) -> str:
    """Return the sentence about training that has taken no step for `silent_s`."""
    pairs = [f"{node} gets no answer from {other}" for node, other in standstill.unanswered]
    where = f"; {some_of(pairs, _NAMED)}" if pairs else ""
    return f"no step for {duration(silent_s)}, usual: {standstill.usual_s:.2g} s{where}"


def held_by(lingering: Lingering) -> str:
    """Return the names of what keeps a process whose script has ended."""
    return some_of(lingering.waits_for, _NAMED) or "its exit functions"


def lingering_text(lingering: Lingering, ended_s: float) -> str:
    """Return the sentence about a script that ended `ended_s` ago while its process has not."""
    return (
        f"training ended {duration(ended_s)} ago; waits for {held_by(lingering)}, at most {duration(lingering.within_s)} "
        "(exit_within)"
    )


def lingers(progress: JobProgress, generation: int) -> bool:
    """Return True if the script of a rank of this generation ended, and its process has not."""
    return progress.lingering is not None and progress.lingering.generation == generation


def standing(progress: JobProgress, state: JobState, generation: int, now: datetime) -> str:
    """Return the note on a job whose ranks wait for each other, or for threads of an ended script; empty for others."""
    over = progress.lingering
    if over is not None and state is JobState.RUNNING and lingers(progress, generation):
        return lingering_text(over, max(0.0, (now - over.since).total_seconds()))
    one = progress.standstill
    if one is None or state is not JobState.RUNNING or one.generation != generation:
        return ""
    return standstill_text(one, max(0.0, (now - one.since).total_seconds()))
