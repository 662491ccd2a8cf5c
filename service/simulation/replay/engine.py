"""Engine of the replay: rounds in virtual time with the policies and the solver of the service."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from service.domain.allocation.knapsack.problem import NOTHING, Row, Solve
from service.domain.allocation.knapsack.solver import solve as production_solve
from service.domain.cluster.contention_rules import RUN_COSTS
from service.domain.cluster.snapshot import LATEST_ARRIVALS
from service.domain.contention.arrivals import Growth, lasting_s, short_lived
from service.domain.contention.deadline_plan import Deadlines
from service.domain.contention.evidence import Evidence
from service.domain.contention.guaranteed_jobs import Tenure
from service.domain.contention.rules import Contest, contend
from service.domain.perf.forecast import forecast
from service.domain.policies.framework.checked import CheckedPolicy
from service.domain.policies.framework.policy import Policy, RoundInput, keeps_batch, rhythm_of
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray
from service.simulation.model.clusters import parts_by_kind
from service.simulation.model.world import Replay, RoundRows, View, World
from service.simulation.replay.finished import FinishedClasses
from service.simulation.replay.jobs import ReplayJobs, Tables
from service.simulation.replay.metrics import job_rows
from service.simulation.replay.nodes import ReplayNodes
from service.simulation.replay.policy_state import PolicyState
from service.simulation.replay.renting import (
    Renter,
    ReplayCluster,
    ReplayMachines,
    ReplayRenting,
    rental_jobs,
    time_of,
)
from service.simulation.replay.speed_views import LearnedView, Oracle, SpeedView
from service.simulation.replay.transitions import Transitions

Progress = Callable[[float], None]
"""Callback that receives the share of ended jobs, from 0 to 1, every few rounds. An exception from it ends the replay."""
EarlyEnds = Callable[[IntArray, FloatArray], BoolArray]
"""Function that returns which of the jobs (n,) with this progress (n,), in reference samples, end before their work is done.

It is called at each round and event, and may keep what it has seen.
"""
_PROGRESS_EVERY = 32
"""Number of rounds between two calls of the progress callback."""


def replay(
    world: World,
    policy: Policy,
    *,
    solve: Solve = production_solve,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Progress | None = None,
    renting: tuple[ReplayRenting, Renter] | None = None,
    early_ends: EarlyEnds | None = None,
) -> Replay:
    """Replay until the last job has ended, or until `rules.give_up_s` after the last submission.

    `clock` gives real seconds, only to time decisions. With `renting`, all nodes are rented on these terms by
    this renter. Raise PolicyFailed.
    """
    followed = world.at_reference_batches() if keeps_batch(policy) else world
    return _Run(followed, policy, solve, clock, renting, early_ends).run(on_progress)


class _Run:
    """Replay of a world under one policy."""

    def __init__(
        self,
        world: World,
        policy: Policy,
        solve: Solve,
        clock: Callable[[], float],
        renting: tuple[ReplayRenting, Renter] | None,
        early_ends: EarlyEnds | None,
    ) -> None:
        self._world, self._solve, self._clock, self._early_ends = world, solve, clock, early_ends
        self._policy = CheckedPolicy(policy)
        self._contention = rhythm_of(policy).applied(world.contention)
        self._tables = Tables(world)
        self._jobs = ReplayJobs(world, self._tables)
        self._classes = FinishedClasses(world, self._jobs)
        self._transitions = Transitions(world, self._jobs)
        self._nodes = ReplayNodes(world, rented=renting is not None)
        self._machines = ReplayMachines(world, *renting) if renting is not None else None
        self._speeds: SpeedView = (
            Oracle(world, self._tables, self._jobs)
            if world.rules.view is View.ORACLE
            else LearnedView(world, self._tables, self._jobs)
        )
        self._state = PolicyState(world)
        self._unit = _unit_goodput(world, self._tables)
        arrivals = world.arrivals
        self._requested = np.array([one.requested_slots for one in arrivals], dtype=np.int64)
        self._weight = np.array([one.weight for one in arrivals])
        self._deadline_s = np.array([one.deadline_s for one in arrivals])
        self._promised = np.array([one.promised for one in arrivals], dtype=np.bool_)
        self._declares = np.array([one.declares_length for one in arrivals], dtype=np.bool_)
        self._active = np.zeros(0, dtype=np.int64)
        self._next = 0
        """Index of the first arrival that has not been submitted."""
        self._rounds: list[tuple[float, ...]] = []

    def run(self, on_progress: Progress | None) -> Replay:
        world, jobs = self._world, self._jobs
        last_s = max(float(jobs.submit_s.max(initial=0.0)), 0.0) + world.rules.give_up_s
        now_s = 0.0
        self._begin()
        while (self._next < len(world.arrivals) or len(self._active)) and now_s <= last_s:
            round_s = self._round_s(now_s)
            now_s = min(round_s, self._nodes.next_s, self._machines.next_s if self._machines else math.inf)
            self._advance(now_s)
            if self._machines:
                self._nodes.join(self._machines.arrived(now_s))
            if self._nodes.next_s <= now_s:
                for rows, checkpoint_s in self._nodes.advance(now_s):
                    jobs.loses_node(rows, now_s, checkpoint_s)
            if now_s == round_s or world.rules.on_events:
                self._arrive(now_s)
                if len(self._active) or (self._machines and self._machines.any_open):
                    self._round(now_s)
            if on_progress is not None and len(self._rounds) % _PROGRESS_EVERY == 0:
                on_progress((self._next - len(self._active)) / len(world.arrivals))
        end_s = now_s if len(self._active) else float(jobs.end_s.max(initial=0.0))
        if on_progress is not None:
            on_progress(1.0)
        return self._replay(end_s)

    def _begin(self) -> None:
        """Set up the jobs that hold slots from the start."""
        holds = np.array([one.holds for one in self._world.arrivals], dtype=np.int64)
        rows = np.flatnonzero(holds != NOTHING)
        if not len(rows):
            return
        self._arrive(0.0)
        self._jobs.holds_already(rows, holds[rows])
        self._nodes.place(rows, holds[rows])
        if self._world.rules.on_events:
            self._round(0.0)

    def _arrive(self, now_s: float) -> None:
        arrivals, first = self._world.arrivals, self._next
        while self._next < len(arrivals) and arrivals[self._next].submit_s <= now_s:
            self._next += 1
        if self._next > first:
            self._active = np.concatenate([self._active, np.arange(first, self._next)])

    def _round_s(self, now_s: float) -> float:
        """Return the time of the next round."""
        rules, arrivals = self._world.rules, self._world.arrivals
        arrival_s = math.inf
        if self._next < len(arrivals):
            arrival_s = max(now_s, arrivals[self._next].submit_s)
        watched = len(self._active) or (self._machines and self._machines.any_open)
        from_s = now_s if watched else max(now_s, math.nextafter(arrival_s, -math.inf))
        tick_s = (math.floor(from_s / rules.interval_s) + 1) * rules.interval_s
        if tick_s <= now_s:
            tick_s += rules.interval_s
        if not rules.on_events:
            return tick_s
        if rules.latencies is not None:
            tick_s = from_s + rules.interval_s
        event_s = self._transitions.next_s(self._active, now_s)
        return min(tick_s, arrival_s, event_s, float(self._jobs.ends_s[self._active].min(initial=np.inf)))

    def _advance(self, now_s: float) -> None:
        ended = self._jobs.advance(self._active, now_s)
        if ended.any():
            self._nodes.place(self._active[ended], np.full(int(ended.sum()), NOTHING))
            self._classes.end(self._active[ended])
            self._active = self._active[~ended]
        if self._early_ends is not None and len(self._active):
            early = self._early_ends(self._active, self._jobs.progress_at(self._active, now_s))
            self._jobs.end_early(self._active[early], now_s)
            self._nodes.place(self._active[early], np.full(int(early.sum()), NOTHING))
            self._active = self._active[~early]
        self._transitions.advance(self._active, now_s)

    def _round(self, now_s: float) -> None:
        jobs, active = self._jobs, self._active
        progress = jobs.progress_at(active, now_s)
        phase = jobs.phase_at(active, progress)
        settled = ~self._transitions.in_transition(active, now_s)
        decided = active[settled]
        given = self._input(decided, now_s, progress[settled], phase[settled])
        rented_usd_per_h = self._machines.usd_per_h if self._machines else None
        policy = self._state.advanced(self._policy, given, decided, jobs, now_s, rented_usd_per_h)
        if self._machines:
            given = self._rent(given, policy, decided, phase[settled], now_s)
        began_s = self._clock()
        contest = self._contest(given, decided, phase[settled], now_s)
        given = contest.given
        choices = policy.choose(given, contest.solver(self._solve))
        decision_s = self._clock() - began_s
        changed = np.flatnonzero(choices.chosen != given.current)
        if len(changed):
            rows, columns = self._free_now(decided[changed], choices.chosen[changed])
            self._transitions.give(rows, columns, now_s)
            self._nodes.place(rows, columns)
        stranded = self._nodes.stranded
        if len(stranded):
            self._transitions.give(stranded, jobs.column[stranded], now_s)
            self._nodes.place(stranded, jobs.column[stranded])
        self._note(now_s, phase, decision_s, choices.solution.gap)

    def _contest(self, given: RoundInput, rows: IntArray, phase: IntArray, now_s: float) -> Contest:
        """Return the rules for competing jobs, applied to a round that decides about `rows` (n,)."""
        return contend(
            given,
            self._tenure(given, rows, phase, now_s),
            self._evidence(rows),
            production_solve,
            self._deadlines(given, rows, phase, now_s),
        )

    def _rent(
        self, given: RoundInput, policy: Policy, rows: IntArray, phase: IntArray, now_s: float
    ) -> RoundInput:
        """Rent and release machines, and return the input of the round on the remaining nodes."""
        assert self._machines is not None
        cluster = ReplayCluster(
            world=self._world,
            nodes=self._nodes,
            jobs=rental_jobs(self._world, rows, self._speeds.sizes(rows)),
            given_with=lambda bounds: self._contest(replace(given, rows=bounds), rows, phase, now_s).given,
            now=time_of(now_s),
            present=self._nodes.present.tolist(),
            jobs_on=self._nodes.jobs_by_node,
        )
        self._nodes.join([], leave=self._machines.decide(cluster, policy, now_s))
        return replace(given, rows=self._nodes.rows)

    def _input(self, rows: IntArray, now_s: float, progress: FloatArray, phase: IntArray) -> RoundInput:
        """Return the input of a round that decides about the jobs `rows` (n,)."""
        jobs, transitions = self._jobs, self._transitions
        goodput, allowed = self._without_growth(rows, *self._speeds.look(rows, phase), now_s)
        allowed = allowed & ~self._short_lived(rows, allowed, now_s)
        declares = self._declares[rows]
        if self._world.rules.latencies is not None:
            declares = declares & transitions.has_announced_work(rows, now_s) & self._speeds.knows(rows)
        return RoundInput(
            configurations=self._world.configurations,
            rows=self._bounds(now_s),
            goodput=goodput,
            allowed=allowed,
            current=jobs.column[rows],
            weight=self._weight[rows],
            age_s=now_s - jobs.submit_s[rows],
            waited_s=np.where(jobs.column[rows] == NOTHING, now_s - jobs.held_until_s[rows], 0.0),
            served_s=jobs.before_s[rows] + jobs.served_s[rows],
            served_slot_s=jobs.before_slot_s[rows] + jobs.served_slot_s[rows],
            changes=jobs.changes_before[rows] + jobs.changes[rows],
            change_s=transitions.change_s(rows),
            stop_s=jobs.restart_s[rows],
            remaining=np.where(declares, jobs.total[rows] - progress, np.nan),
            requested_slots=self._requested[rows],
            job_class=self._classes.job_class[rows],
            done=jobs.done_before[rows] + progress,
            converged=jobs.converged_at(rows, phase),
            finished=self._classes.finished,
        )

    def _tenure(self, given: RoundInput, rows: IntArray, phase: IntArray, now_s: float) -> Tenure:
        rules, holds = self._contention, given.current != NOTHING
        run_s = np.where(holds, now_s - self._jobs.runs_from_s[rows], 0.0)
        progress = self._jobs.progress_at(rows, now_s)
        left_s = self._jobs.reported_left_s(rows, phase, progress, now_s)
        return Tenure(
            run_s=run_s,
            min_run_s=np.maximum(rules.min_run_s, RUN_COSTS * self._jobs.restart_s[rows]),
            pinned=np.zeros(len(rows), dtype=np.bool_),
            rigid=np.zeros(len(rows), dtype=np.bool_),
            forced=holds & ~given.allowed[np.arange(len(rows)), np.maximum(given.current, 0)],
            priority=self._weight[rows],
            recent_s=self._transitions.recent_changes(rows, now_s) * given.change_s,
            coming=np.zeros(len(given.configurations.kinds)),
            max_wait_s=rules.max_wait_s,
            leased=self._jobs.leased(rows, phase, now_s, rules) if rules.leases else None,
            restart_s=self._jobs.restart_s[rows],
            rests_s=self._transitions.rests_s(rows, now_s),
            leaving=self._transitions.leaving(self._active),
            left_s=np.where(self._declares[rows], left_s, np.inf),
        )

    def _evidence(self, rows: IntArray) -> Evidence:
        return Evidence(
            known=self._speeds.measured(rows),
            exempt=np.zeros(len(rows), dtype=np.bool_),
            entitled=np.zeros(len(rows), dtype=np.bool_),
            nodes=self._nodes.by_kind,
        )

    def _deadlines(
        self, given: RoundInput, rows: IntArray, phase: IntArray, now_s: float
    ) -> Deadlines | None:
        """Return the deadlines of the jobs `rows` (n,), with P90 finishes from what the policy knows."""
        left_s = self._deadline_s[rows] - now_s
        if not np.isfinite(left_s).any():
            return None
        goodput, low = self._speeds.pace(rows, phase)
        here = np.arange(goodput.shape[1]) == given.current[:, None]
        change_s = np.where(given.current == NOTHING, self._jobs.restart_s[rows], given.change_s)
        late_s = forecast(
            goodput=np.where(self._speeds.sizes(rows), goodput, 0.0),
            low=low,
            remaining=given.remaining[:, None],
            remaining_spread=np.zeros(1),
            usd_per_h=np.zeros(1),
            pause_s=np.where(here, 0.0, change_s[:, None]),
        ).time_p90_s
        unknown = np.isnan(given.remaining) | ~self._speeds.knows(rows)
        return Deadlines(
            left_s=left_s,
            late_s=np.where(unknown[:, None], np.nan, late_s),
            may=given.allowed,
            promised=self._promised[rows],
            visiting=np.zeros(len(rows), dtype=np.bool_),
            priority=self._weight[rows],
        )

    def _without_growth(
        self, rows: IntArray, goodput: FloatArray, allowed: BoolArray, now_s: float
    ) -> tuple[FloatArray, BoolArray]:
        """Return goodput and allowed columns (n, C). A job that was just changed may not grow."""
        just_changed = np.flatnonzero(self._transitions.just_changed(rows, now_s))
        if not len(just_changed):
            return goodput, allowed
        goodput, allowed = goodput.copy(), allowed.copy()
        slots, held = self._world.configurations.slots, self._jobs.column[rows[just_changed]]
        allowed[just_changed] &= slots <= slots[held][:, None]
        goodput[just_changed] = np.minimum(goodput[just_changed], goodput[just_changed, held][:, None])
        return goodput, allowed

    def _short_lived(self, rows: IntArray, allowed: BoolArray, now_s: float) -> BoolArray:
        """Return the columns (n, C) that the jobs `rows` (n,) would probably have to leave soon, as rounds of the service do."""
        jobs, slots = self._jobs, self._world.configurations.slots
        if self._world.rules.live_pause_s is not None:
            return np.zeros_like(allowed)
        held = jobs.column[self._active]
        parts = np.asarray(parts_by_kind(self._world.configurations), dtype=np.float64)
        free = np.array([row.capacity for row in self._nodes.rows[: parts.shape[1]]]) - parts[
            held[held != NOTHING]
        ].sum(axis=0)
        waits_s = jobs.held_until_s[self._active[held == NOTHING]]
        latest_s = np.sort(jobs.submit_s[: self._next])[-LATEST_ARRIVALS:]
        again_s = waits_s[~np.isin(waits_s, jobs.submit_s[: self._next])]
        least = np.where(allowed, slots, slots.max(initial=0)).min(axis=1, initial=slots.max(initial=0))
        return short_lived(
            Growth(
                current=jobs.column[rows],
                slots=slots,
                parts=parts,
                restarted=np.ones(len(rows), dtype=np.bool_),
                stay_s=lasting_s(jobs.restart_s[rows], self._contention.min_run_s),
                least=least,
                room=np.maximum(free, 0.0),
                arrived_s=(now_s - np.concatenate([latest_s, again_s])).tolist(),
            )
        )

    def _bounds(self, now_s: float) -> tuple[Row, ...]:
        """Return the constraints of the nodes, less the slots held by jobs in transition."""
        in_transition = self._active[self._transitions.in_transition(self._active, now_s)]
        if not len(in_transition):
            return self._nodes.rows
        held = self._transitions.columns(in_transition)
        return tuple(
            replace(row, capacity=row.capacity - float(row.demand[held].sum())) for row in self._nodes.rows
        )

    def _free_now(self, rows: IntArray, columns: IntArray) -> tuple[IntArray, IntArray]:
        """Return the jobs `rows` (n,) whose new columns (n,) are free already.

        The other jobs wait for a later round, since a job is still leaving their slots.
        """
        if self._world.rules.latencies is None:
            return rows, columns
        demands = np.array([row.demand for row in self._nodes.rows])
        free = np.array([row.capacity for row in self._nodes.rows])
        free -= demands[:, self._transitions.columns(self._active)].sum(axis=1)
        may = np.ones(len(rows), dtype=np.bool_)
        added, kept = self._transitions.needs(rows, columns)
        for index in np.flatnonzero(added != NOTHING).tolist():
            more = demands[:, added[index]] - (demands[:, kept[index]] if kept[index] != NOTHING else 0.0)
            may[index] = bool((more <= free).all())
            free -= more * may[index]
        return rows[may], columns[may]

    def _note(self, now_s: float, phase: IntArray, decision_s: float, gap: float) -> None:
        jobs, configurations = self._jobs, self._world.configurations
        column = jobs.column[self._active]
        runs = column != NOTHING
        held = column[runs]
        application = jobs.application[self._active][runs]
        goodput = self._tables.goodput[application, phase[runs], held]
        self._rounds.append(
            (
                now_s,
                len(column) - len(held),
                len(held),
                float(configurations.slots[held].sum()),
                self._nodes.slots,
                float(configurations.usd_per_h[held].sum()),
                float((goodput / self._unit[application, phase[runs]]).sum()),
                decision_s,
                gap,
            )
        )

    def _replay(self, end_s: float) -> Replay:
        table = np.array(self._rounds, dtype=np.float64).reshape(len(self._rounds), 9)
        rounds = RoundRows(
            time_s=table[:, 0],
            queued=table[:, 1].astype(np.int64),
            running=table[:, 2].astype(np.int64),
            slots_used=table[:, 3].astype(np.int64),
            slots_present=table[:, 4].astype(np.int64),
            usd_per_h=table[:, 5],
            goodput=table[:, 6],
            decision_s=table[:, 7],
            gap=table[:, 8],
        )
        return Replay(
            world=self._world,
            policy=self._policy.name,
            end_s=end_s,
            jobs=job_rows(self._world, self._tables, self._jobs, rounds, end_s),
            rounds=rounds,
            segments=self._jobs.segments(end_s),
            machines=self._machines.closed(end_s) if self._machines else (),
        )


def _unit_goodput(world: World, tables: Tables) -> FloatArray:
    """Return the goodput (A, E) of each application on the slowest of its configurations with the fewest slots."""
    slots, runs = world.configurations.slots, tables.goodput > 0
    fewest = np.where(runs, slots, np.iinfo(np.int64).max).min(axis=2, initial=np.iinfo(np.int64).max)
    smallest = runs & (slots == fewest[:, :, None])
    unit = np.where(smallest, tables.goodput, np.inf).min(axis=2, initial=np.inf)
    return np.where(np.isfinite(unit), unit, 1.0)
