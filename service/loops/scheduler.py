"""The scheduler's loops: rounds, delivery, what-if simulations, expiry, retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from structlog.contextvars import bound_contextvars

from service.cancellation import heed_cancellation
from service.domain.life.life import Launch
from service.domain.nodes.silence import SilenceRule
from service.domain.policies.framework.checked import PolicyFailed
from service.domain.policies.registry import DEFAULT, Policies
from service.domain.shared.errors import Unavailable
from service.domain.shared.retention import HISTORY_KEPT
from service.loops.renting import Rents
from service.loops.runner import Loop, run_loop
from service.usecases.jobs.after import Releases
from service.usecases.jobs.halving import end_early
from service.usecases.money.accrue import accrue
from service.usecases.money.budgets import watch_money
from service.usecases.nodes.credentials import forget_gone
from service.usecases.nodes.expire import expire_nodes, expire_switches
from service.usecases.notifications.deliver import Deliveries
from service.usecases.ports.credentials import QueueAccess
from service.usecases.ports.facts import WakeUp, WakeUps
from service.usecases.ports.rounds import CommandQueue
from service.usecases.ports.simulations import Simulator
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transactions
from service.usecases.rounds.deliver import deliver
from service.usecases.rounds.schedule import run_round
from service.usecases.simulations.simulations import run_next
from service.usecases.upkeep.retain import retain
from service.usecases.upkeep.sweep import sweep

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of the loops, in seconds, and retention."""

    round_min_interval_s: float = 0.1
    round_max_interval_s: float = 5.0
    silence: SilenceRule = field(default_factory=SilenceRule)
    keep_days: int = 90

    @property
    def history(self) -> timedelta:
        """Return how long the complete history of a job is kept."""
        return min(HISTORY_KEPT, timedelta(days=self.keep_days))


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """All background work of the leader."""

    transactions: Transactions
    queue: CommandQueue
    access: QueueAccess
    storage: StoredObjects
    wake_ups: WakeUps
    simulator: Simulator
    launch: Launch
    intervals: Intervals
    now: Callable[[], datetime]
    clock_s: Callable[[], float]
    """A monotonic clock, in seconds."""
    usd_per_slot_h: Mapping[str, float]
    """Prices of a slot-hour by device kind."""
    new_round_id: Callable[[], str]
    policies: Policies
    rents: Rents | None = None
    deliveries: Deliveries | None = None
    """The messages of webhooks; None if nobody sends them."""
    look_at_clock: Callable[[], Awaitable[None]] | None = None
    """Updates the clock behind `now`; None if it needs no update."""
    _releases: Releases = field(init=False)
    _failed_policy: str = field(default="", init=False)
    """Name of the policy that failed in the last round; empty without a failure."""

    def __post_init__(self) -> None:
        self._releases = Releases(
            transactions=self.transactions, objects=self.storage, launch=self.launch, now=self.now
        )

    async def work(self) -> None:
        """Run all loops until cancelled.

        The first delivery comes before the first round: a failover ends a term, and a database that lost its tail
        must assign no generations before that is noticed.
        """
        try:
            await self.deliver()
        except Unavailable as error:
            heed_cancellation()
            log.warning("delivery_unchecked", reason=error.message)
        loops: list[tuple[Loop, WakeUp | None]] = [
            (self._round_loop(), WakeUp.ROUND),
            (
                Loop(name="deliver", run_once=self.deliver, min_interval_s=0.005, max_interval_s=2.0),
                WakeUp.COMMANDS,
            ),
            (
                Loop(name="simulate", run_once=self.simulate, min_interval_s=0.05, max_interval_s=5.0),
                WakeUp.SIMULATIONS,
            ),
            (Loop(name="expire", run_once=self.expire, min_interval_s=1.0, max_interval_s=1.0), None),
            (
                Loop(name="release", run_once=self.release, min_interval_s=0.02, max_interval_s=2.0),
                WakeUp.AFTER,
            ),
            (
                Loop(name="end_early", run_once=self.end_early, min_interval_s=0.1, max_interval_s=5.0),
                WakeUp.TRIALS,
            ),
            (
                # A pass writes rows for every paid node, even if nothing has happened.
                Loop(name="accrue", run_once=self.accrue, min_interval_s=5.0, max_interval_s=5.0, rests=15.0),
                None,
            ),
            (Loop(name="retain", run_once=self.retain, min_interval_s=600.0, max_interval_s=600.0), None),
            (Loop(name="sweep", run_once=self.sweep, min_interval_s=3600.0, max_interval_s=3600.0), None),
        ]
        if self.rents is not None:
            loops.append((self.rents.loop(), None))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._releases.running())
            if self.deliveries is not None:
                await stack.enter_async_context(self.deliveries.running())
                messages = Loop(
                    name="messages",
                    run_once=self.deliveries.start,
                    min_interval_s=0.1,
                    max_interval_s=0.5,
                    rests=3.0,
                )
                loops.append((messages, None))
            wakes = [
                await stack.enter_async_context(self.wake_ups.heard((wake_up, "")))
                if wake_up
                else asyncio.Event()
                for _, wake_up in loops
            ]
            # Entered last: the loops end first, while the wake-ups can still be heard.
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for (loop, _), wake in zip(loops, wakes, strict=True):
                tasks.create_task(run_loop(loop, wake), name=loop.name)

    def _round_loop(self) -> Loop:
        return Loop(
            name="round",
            run_once=self.round,
            min_interval_s=self.intervals.round_min_interval_s,
            max_interval_s=self.intervals.round_max_interval_s,
            rests=3.0,
        )

    async def round(self) -> None:
        """Run one scheduling round, and log its result."""
        round_id = self.new_round_id()
        with bound_contextvars(round=round_id):
            result = await run_round(
                self.transactions,
                self.launch,
                round_id=round_id,
                now=self.now(),
                clock_s=self.clock_s,
                usd_per_slot_h=self.usd_per_slot_h,
                policies=self.policies,
            )
            self._report_policy(result.failure)
            if result.did_something:
                log.info(
                    "round",
                    applied=result.applied,
                    stale=result.stale,
                    waiting=result.waiting,
                    drained=result.drained,
                    gap=result.gap,
                )

    def _report_policy(self, failure: PolicyFailed | None) -> None:
        """Log the first of a series of rounds in which the policy fails, and the end of the series."""
        if failure is not None and failure.policy != self._failed_policy:
            log.error(
                "policy_failed",
                policy=failure.policy,
                error=failure.problem,
                instead=DEFAULT,
                what_next="install a corrected package, or choose another policy: headway policy NAME",
                exc_info=failure.__cause__,
            )
        elif failure is None and self._failed_policy:
            log.info("policy_works_again")
        self._failed_policy = "" if failure is None else failure.policy

    async def release(self) -> None:
        """Begin to release jobs whose predecessors have ended."""
        started = await self._releases.start()
        if started:
            log.info("releases", jobs=started)

    async def end_early(self) -> None:
        """End trials of sweeps that are not among the best share at their rungs."""
        ended = await end_early(self.transactions, self.launch, self.now())
        if ended:
            log.info("ended_early", trials=ended)

    async def deliver(self) -> None:
        """Push commands that are due to the nodes' streams."""
        pushed = await deliver(self.transactions, self.queue, launch=self.launch, now=self.now())
        if pushed:
            log.info("delivered", commands=pushed)

    async def simulate(self) -> None:
        """Run what-if simulations until none waits."""
        while True:
            began_s = self.clock_s()
            taken = await run_next(
                self.transactions, self.simulator, usd_per_slot_h=self.usd_per_slot_h, now=self.now
            )
            if taken is None:
                return
            log.info("simulated", simulation=taken.id, took_s=round(self.clock_s() - began_s, 3))

    async def expire(self) -> None:
        """Mark silent nodes as LOST, and end changes in place that take too long."""
        if self.look_at_clock is not None:
            # Update the clock first: nodes whose last contact was stored by another clock must not be judged
            # by this one.
            await self.look_at_clock()
        lost = await expire_nodes(
            self.transactions, silence=self.intervals.silence, launch=self.launch, now=self.now()
        )
        if lost:
            log.warning("nodes_lost", nodes=lost)
        async with self.transactions.begin() as tx:
            overdue = await expire_switches(tx, launch=self.launch, now=self.now())
        if overdue:
            log.warning("switches_overdue", jobs=overdue)

    async def accrue(self) -> None:
        """Update the ledger, and send notices about budgets that are nearly or fully spent."""
        async with self.transactions.begin() as tx:
            await accrue(tx, self.usd_per_slot_h, self.now(), history=self.intervals.history)
        notices = await watch_money(self.transactions, self.launch, self.now())
        if notices:
            log.info("money", told_of=notices)

    async def retain(self) -> None:
        """Delete rows and objects whose retention has ended."""
        deleted = await retain(
            self.transactions, self.storage, keep_days=self.intervals.keep_days, now=self.now()
        )
        if deleted.jobs or deleted.bundles:
            log.info("retained", jobs=deleted.jobs, bundles=deleted.bundles)
        if deleted.problem is not None:
            log.warning("objects_left", why=deleted.problem, what_next="the next sweep deletes them")
        forgotten = await forget_gone(self.transactions, self.access)
        if forgotten:
            log.info("access_taken", nodes=forgotten)

    async def sweep(self) -> None:
        """Shorten long histories, and delete objects that nothing refers to."""
        deleted = await sweep(
            self.transactions, self.storage, keep_days=self.intervals.keep_days, now=self.now()
        )
        if deleted.did_something:
            log.info(
                "swept",
                rows=deleted.rows,
                folders=deleted.folders,
                bundles=deleted.bundles,
                log_pieces=deleted.log_pieces,
            )
