"""Next actions of the agent, as a pure function of the wanted state, the actual state and the time.

Rules, in order of precedence:

1. A `run` is refused unless its generation is newer than that of any earlier `run` or `stop` for the job.
   So a stop that arrives before its run wins, and a command that arrives twice is idempotent.
2. A newer run of a job ends the older ones. It starts when they are gone and its slots are free. A run that
   joins does not end them, and starts beside them as soon as its slots are free.
3. A stop covers the generations from its oldest to its newest. Mode checkpoint sends SIGTERM to every rank,
   and SIGKILL after the grace period. Mode kill sends SIGKILL. Of several stops the earliest SIGKILL counts.
4. The ranks of a generation are a gang. When one fails, the others get `GANG_GRACE_S` to fail by
   themselves, since their own errors are more informative than a signal. Then they get SIGKILL. They get
   no SIGTERM, because they can no longer save a checkpoint together.
   Under the training library, a rank that dies of the agent's own SIGTERM has failed, because its peers
   then wait for it in vain. A plain script may leave the checkpoint to one rank, so there it has not failed.
   While a live run is not being stopped, the service applies this rule instead of the agent, since the
   surviving ranks may continue without the failed one.
5. When the host is taken away, the service moves its runs. The agent itself stops a run that has just
   enough time left for a checkpoint (`last_call_s`), even if the service does not answer.
6. A run is released when nothing of it is alive. In a live run, each slot is released when nothing of its
   rank is alive.

Times are in seconds of the boot-time clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from headway.contract.runtime import EXIT_DONE, EXIT_STOPPED

GANG_GRACE_S = 2.0
_RECLAIM_MARGIN_S = 2.0
"""Seconds before the end of the host at which all runs have ended, so that their last reports still get through."""


class Phase(StrEnum):
    """Phase in the life of a run.

    PREPARING: its files are being fetched. READY: it may start. LIVE: the launcher was ordered to start it.
    GONE: no process of it is left.
    """

    PREPARING = "preparing"
    READY = "ready"
    LIVE = "live"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Newest generations of a job in run and stop commands; 0 without such a command."""

    run: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of one generation of a job on this node, until it is released."""

    job_id: str
    generation: int
    slots: frozenset[int]
    """Slots that are not released yet."""
    live: bool = False
    """True if ranks join and leave one by one, and the service decides on the consequences of a rank's end."""
    joins: bool = False
    """True if its ranks train together with those of older runs of the job."""
    phase: Phase = Phase.PREPARING
    terminate: bool = False
    """True if SIGTERM is to be sent."""
    kill_at_s: float | None = None
    """Time at which SIGKILL is to be sent, if any."""
    terminated: bool = False
    killed: bool = False

    @property
    def ending(self) -> bool:
        """True if the run has been ordered to end."""
        return self.terminate or self.kill_at_s is not None


class ActionKind(Enum):
    """Kind of an action.

    START: order the launcher to start the run. TERMINATE: send SIGTERM to each rank. KILL: send SIGKILL to
    every process of the run. RELEASE: report the run as gone, and forget it.
    """

    START = auto()
    TERMINATE = auto()
    KILL = auto()
    RELEASE = auto()


class Action(NamedTuple):
    """Action that is due for a run."""

    kind: ActionKind
    run: RunState


def refusal(fence: Fence, generation: int) -> str:
    """Return the reason why a `run` of this generation must not start; empty if it may."""
    if generation <= fence.run:
        return f"a run of generation {fence.run} was seen already"
    if generation <= fence.stop:
        return f"a stop of generation {fence.stop} was seen already"
    return ""


def stopped(run: RunState, *, kill: bool, grace_s: float, now_s: float) -> RunState:
    """Return the state of the run after a stop for it."""
    due_s = now_s if kill else now_s + grace_s
    return replace(
        run,
        terminate=run.terminate or not kill,
        kill_at_s=due_s if run.kill_at_s is None else min(run.kill_at_s, due_s),
    )


def last_call_s(grace_s: float, noticed_s: float, reclaim_s: float) -> float:
    """Return the latest time to stop a run with its full grace period, if the host is gone at `reclaim_s`.

    For a short notice, the service gets half of the time: it may move the run in place, which loses no
    progress.
    """
    end_s = max(reclaim_s - _RECLAIM_MARGIN_S, noticed_s)
    return end_s - min(grace_s, (end_s - noticed_s) / 2)


def reclaimed(run: RunState, *, reclaim_s: float, now_s: float) -> RunState:
    """Return the state of the run after `last_call_s`: SIGTERM now, SIGKILL shortly before the host is gone."""
    return stopped(run, kill=False, grace_s=max(reclaim_s - _RECLAIM_MARGIN_S - now_s, 0.0), now_s=now_s)


def failed(exit_code: int | None, *, completed: bool) -> bool:
    """Return True if a rank failed. The exit code is None for a signal or an unknown end."""
    return not completed and exit_code not in (EXIT_DONE, EXIT_STOPPED)


def breaks_gang(exit_code: int | None, *, completed: bool, signalled: bool, library: bool) -> bool:
    """Return True if a rank's end breaks the gang (rule 4). `signalled` means a signal of this agent."""
    return failed(exit_code, completed=completed) and (library or not signalled)


def after_failure(run: RunState, now_s: float) -> RunState:
    """Return the state of the run after one of its ranks failed: a checkpoint in progress is no longer awaited."""
    if run.live and not run.ending:
        return run
    due_s = now_s + GANG_GRACE_S
    return replace(run, kill_at_s=due_s if run.kill_at_s is None else min(run.kill_at_s, due_s))


def reconcile(runs: Iterable[RunState], now_s: float) -> list[Action]:
    """Return every action that is due. Actions are idempotent; the caller records the executed ones."""
    runs = list(runs)
    newest = {run.job_id: run.generation for run in sorted(runs, key=_age) if not run.joins}
    actions: list[Action] = []
    busy = {slot for run in runs if run.phase is Phase.LIVE for slot in run.slots}
    alive = {run.job_id for run in runs if run.phase is Phase.LIVE}
    for run in sorted(runs, key=_age):
        superseded = run.generation < newest.get(run.job_id, 0)
        action = _end(run, superseded=superseded, now_s=now_s)
        if action is not None:
            actions.append(action)
        elif (
            run.phase is Phase.READY and (run.joins or run.job_id not in alive) and busy.isdisjoint(run.slots)
        ):
            actions.append(Action(ActionKind.START, run))
            busy |= run.slots
    return actions


def _age(run: RunState) -> tuple[str, int]:
    return run.job_id, run.generation


def _end(run: RunState, *, superseded: bool, now_s: float) -> Action | None:
    """Return the action that advances the end of the run, if it is to end."""
    if run.phase is Phase.GONE:
        return Action(ActionKind.RELEASE, run)
    ending = run.ending or superseded
    if run.phase is not Phase.LIVE:
        return Action(ActionKind.RELEASE, run) if ending else None
    if not run.killed and (superseded or (run.kill_at_s is not None and run.kill_at_s <= now_s)):
        return Action(ActionKind.KILL, run)
    if run.terminate and not run.terminated:
        return Action(ActionKind.TERMINATE, run)
    return None
