"""What to do next, as a pure function of what is wanted, what is there and the time.

Rules, in the order in which they bind:

1. A `run` is refused unless its generation is newer than any `run`, and any `stop`, seen for the job.
   So a stop that arrives before its run wins, and a command that arrives twice does nothing twice.
2. A newer run of a job ends the older ones; it starts when they are gone and its slots are free. One that
   joins lets them be, and starts beside them as soon as its slots are free.
3. A stop is for the generations from its oldest to its newest. `stop` of mode checkpoint: SIGTERM to every rank, SIGKILL when the grace is over. Mode kill: SIGKILL.
   Of several stops the earliest SIGKILL counts.
4. The ranks of a generation are a gang. When one fails, the others get `GANG_GRACE_S` to fail by
   themselves, since their own errors say more than a signal would, then SIGKILL. They get no SIGTERM:
   there is nothing that they could still checkpoint together. A rank that dies of the agent's own SIGTERM
   has failed where the training library runs, since its peers then wait for it in vain; plain scripts may
   leave the checkpoint to one rank, so there it has not. While a live run is not being stopped, the service
   does this: its survivors may go on without the rank.
5. When the host is taken away, the service moves its runs. A run that it has not asked to end when just the time for a
   checkpoint is left is stopped by the agent itself (`last_call_s`), whether the service answers or not.
6. A run is released when nothing of it is alive, and of a live run each slot when nothing of its rank is.

Times are in seconds of the boot-time clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from headway.contract.runtime import EXIT_DONE, EXIT_STOPPED

GANG_GRACE_S = 2.0
_RECLAIM_MARGIN_S = 2.0
"""Everything on a host that is taken away has ended so long before: its last words must still get through."""


class Phase(StrEnum):
    """Where a run is in its life.

    PREPARING: its files are being fetched. READY: it may start. LIVE: the launcher was told to start it.
    GONE: no process of it is left.
    """

    PREPARING = "preparing"
    READY = "ready"
    LIVE = "live"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The newest generations of a job that commands named; 0 when none did."""

    run: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One generation of a job on this node, until it is released."""

    job_id: str
    generation: int
    slots: frozenset[int]
    """Those that are not released yet."""
    live: bool = False
    """Its ranks come and go one by one, and the service decides what a rank's end means."""
    joins: bool = False
    """Its ranks train with those of older runs of the job."""
    phase: Phase = Phase.PREPARING
    terminate: bool = False
    """SIGTERM is wanted."""
    kill_at_s: float | None = None
    """SIGKILL is due then."""
    terminated: bool = False
    killed: bool = False

    @property
    def ending(self) -> bool:
        """Whether somebody wants it to end."""
        return self.terminate or self.kill_at_s is not None


@dataclass(frozen=True, slots=True)
class Start:
    """Tell the launcher to start the run."""

    run: RunState


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to each rank."""

    run: RunState


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to everything of the run."""

    run: RunState


@dataclass(frozen=True, slots=True)
class Release:
    """Report that the run is gone, and forget it."""

    run: RunState


Action: TypeAlias = Start | Terminate | Kill | Release


def refusal(fence: Fence, generation: int) -> str:
    """Why a `run` of this generation must not start; empty when it may."""
    if generation <= fence.run:
        return f"generation {fence.run} was seen already"
    if generation <= fence.stop:
        return f"generation {fence.stop} was stopped already"
    return ""


def stopped(run: RunState, *, kill: bool, grace_s: float, now_s: float) -> RunState:
    """The run after a stop arrived for it."""
    due_s = now_s if kill else now_s + grace_s
    return replace(
        run,
        terminate=run.terminate or not kill,
        kill_at_s=due_s if run.kill_at_s is None else min(run.kill_at_s, due_s),
    )


def last_call_s(grace_s: float, noticed_s: float, reclaim_s: float) -> float:
    """When a run on a host that is gone at `reclaim_s` must be stopped at the latest to have its grace.

    Of a short notice, half is the service's: it may move the run in place, which loses nothing.
    """
    end_s = max(reclaim_s - _RECLAIM_MARGIN_S, noticed_s)
    return end_s - min(grace_s, (end_s - noticed_s) / 2)


def reclaimed(run: RunState, *, reclaim_s: float, now_s: float) -> RunState:
    """The run after its last call: SIGTERM now, SIGKILL shortly before the host is gone."""
    return stopped(run, kill=False, grace_s=max(reclaim_s - _RECLAIM_MARGIN_S - now_s, 0.0), now_s=now_s)


def failed(exit_code: int | None, *, completed: bool) -> bool:
    """Whether a rank ended badly. A code of None is a signal, or unknown."""
    return not completed and exit_code not in (EXIT_DONE, EXIT_STOPPED)


def breaks_gang(exit_code: int | None, *, completed: bool, signalled: bool, library: bool) -> bool:
    """Whether a rank's end leaves the others nothing to do (rule 4). `signalled`: by this agent."""
    return failed(exit_code, completed=completed) and (library or not signalled)


def after_failure(run: RunState, now_s: float) -> RunState:
    """The run after one of its ranks failed: a checkpoint under way is not waited for any longer."""
    if run.live and not run.ending:
        return run
    due_s = now_s + GANG_GRACE_S
    return replace(run, kill_at_s=due_s if run.kill_at_s is None else min(run.kill_at_s, due_s))


def reconcile(runs: Iterable[RunState], now_s: float) -> list[Action]:
    """Every action that is due. Repeating one is harmless; the caller records what it has done."""
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
            actions.append(Start(run))
            busy |= run.slots
    return actions


def _age(run: RunState) -> tuple[str, int]:
    return run.job_id, run.generation


def _end(run: RunState, *, superseded: bool, now_s: float) -> Action | None:
    """The action that brings the run nearer to its end, if it is to end."""
    if run.phase is Phase.GONE:
        return Release(run)
    ending = run.ending or superseded
    if run.phase is not Phase.LIVE:
        return Release(run) if ending else None
    if not run.killed and (superseded or (run.kill_at_s is not None and run.kill_at_s <= now_s)):
        return Kill(run)
    if run.terminate and not run.terminated:
        return Terminate(run)
    return None
