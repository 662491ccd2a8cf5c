"""The scheduler's loops: rounds, delivery, what-if simulations, expiry, retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from structlog.contextvars import bound_contextvars

from service.domain.silence import SilenceRule
from service.loops.renting import Rents
from service.loops.runner import Loop, run_loop
from service.usecases.accrue import accrue
from service.usecases.budgets import watch_money
from service.usecases.deliver import deliver
from service.usecases.expire import expire_nodes, expire_switches
from service.usecases.node_credentials import forget_gone
from service.usecases.node_ports import QueueAccess
from service.usecases.orders import Launch
from service.usecases.outside_ports import CommandQueue
from service.usecases.ports import Transactions
from service.usecases.records import Bell
from service.usecases.retain import retain
from service.usecases.retention_ports import HISTORY_KEPT, StoredObjects
from service.usecases.schedule import run_round
from service.usecases.simulation_ports import Simulator
from service.usecases.simulations import run_next
from service.usecases.sweep import sweep

log = structlog.get_logger()


class Hearing(Protocol):
    """Where bells are heard."""

    def heard(self, *bells: tuple[Bell, str]) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set when one of the bells rings."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often the loops run, in seconds."""

    round_min_interval_s: float = 0.1
    round_max_interval_s: float = 5.0
    silence: SilenceRule = field(default_factory=SilenceRule)
    keep_days: int = 90

    @property
    def history(self) -> timedelta:
        """How long everything that a job did is known."""
        return min(HISTORY_KEPT, timedelta(days=self.keep_days))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Everything that happens by itself, as long as this process is the leader."""

    transactions: Transactions
    queue: CommandQueue
    access: QueueAccess
    storage: StoredObjects
    bells: Hearing
    simulator: Simulator
    launch: Launch
    intervals: Intervals
    now: Callable[[], datetime]
    clock_s: Callable[[], float]
    """Seconds of a clock that only ever goes forward."""
    usd_per_slot_h: Mapping[str, float]
    """Prices by device kind."""
    new_round_id: Callable[[], str]
    rents: Rents | None = None
    look_at_clock: Callable[[], Awaitable[None]] | None = None
    """Sets what `now` goes by; None: nothing to look at."""

    async def work(self) -> None:
        """Run all loops until cancelled."""
        loops: list[tuple[Loop, Bell | None]] = [
            (self._round_loop(), Bell.ROUND),
            (
                Loop(name="deliver", run_once=self.deliver, min_interval_s=0.005, max_interval_s=2.0),
                Bell.COMMANDS,
            ),
            (
                Loop(name="simulate", run_once=self.simulate, min_interval_s=0.05, max_interval_s=5.0),
                Bell.SIMULATIONS,
            ),
            (Loop(name="expire", run_once=self.expire, min_interval_s=1.0, max_interval_s=1.0), None),
            (
                # It writes of every node that is paid for, whether anything has happened or not.
                Loop(name="accrue", run_once=self.accrue, min_interval_s=5.0, max_interval_s=5.0, rests=15.0),
                None,
            ),
            (Loop(name="retain", run_once=self.retain, min_interval_s=600.0, max_interval_s=600.0), None),
            (Loop(name="sweep", run_once=self.sweep, min_interval_s=3600.0, max_interval_s=3600.0), None),
        ]
        if self.rents is not None:
            loops.append((self.rents.loop(), None))
        async with AsyncExitStack() as stack:
            wakes = [
                await stack.enter_async_context(self.bells.heard((bell, ""))) if bell else asyncio.Event()
                for _, bell in loops
            ]
            # Entered last: its end is where this waits, and the bells must be heard until then.
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
        """One scheduling round. What is logged meanwhile says which."""
        round_id = self.new_round_id()
        with bound_contextvars(round=round_id):
            result = await run_round(
                self.transactions,
                self.launch,
                round_id=round_id,
                now=self.now(),
                clock_s=self.clock_s,
                usd_per_slot_h=self.usd_per_slot_h,
            )
            if result.did_something:
                log.info(
                    "round",
                    applied=result.applied,
                    stale=result.stale,
                    waiting=result.waiting,
                    drained=result.drained,
                    gap=result.gap,
                )

    async def deliver(self) -> None:
        """Push what is due."""
        pushed = await deliver(self.transactions, self.queue, now=self.now())
        if pushed:
            log.info("delivered", commands=pushed)

    async def simulate(self) -> None:
        """Answer what-if questions until none waits."""
        while True:
            began_s = self.clock_s()
            taken = await run_next(
                self.transactions, self.simulator, usd_per_slot_h=self.usd_per_slot_h, now=self.now
            )
            if taken is None:
                return
            log.info("simulated", simulation=taken.id, took_s=round(self.clock_s() - began_s, 3))

    async def expire(self) -> None:
        """Notice silent nodes, and changes in place that take too long."""
        if self.look_at_clock is not None:
            # Nobody is judged by a clock that was set after those were who wrote when they were seen.
            await self.look_at_clock()
        lost = await expire_nodes(
            self.transactions, silence=self.intervals.silence, launch=self.launch, now=self.now()
        )
        if lost:
            log.warning("nodes_lost", nodes=lost)
        async with self.transactions.begin() as tx:
            overdue = await expire_switches(tx, now=self.now())
        if overdue:
            log.warning("switches_overdue", jobs=overdue)

    async def accrue(self) -> None:
        """Bring the ledger up to date, and tell of money that comes to its end."""
        async with self.transactions.begin() as tx:
            await accrue(tx, self.usd_per_slot_h, self.now(), history=self.intervals.history)
        told = await watch_money(self.transactions, self.launch, self.now())
        if told:
            log.info("money", told_of=told)

    async def retain(self) -> None:
        """Delete what is over."""
        gone = await retain(
            self.transactions, self.storage, keep_days=self.intervals.keep_days, now=self.now()
        )
        if gone.jobs or gone.bundles:
            log.info("retained", jobs=gone.jobs, bundles=gone.bundles)
        if gone.problem is not None:
            log.warning("objects_left", why=gone.problem, what_next="the next sweep deletes them")
        forgotten = await forget_gone(self.transactions, self.access)
        if forgotten:
            log.info("access_taken", nodes=forgotten)

    async def sweep(self) -> None:
        """Shorten long histories, and delete what nobody refers to."""
        gone = await sweep(
            self.transactions, self.storage, keep_days=self.intervals.keep_days, now=self.now()
        )
        if gone.did_something:
            log.info(
                "swept",
                rows=gone.rows,
                folders=gone.folders,
                bundles=gone.bundles,
                log_pieces=gone.log_pieces,
            )
