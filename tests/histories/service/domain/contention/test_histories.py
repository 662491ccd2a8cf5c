"""The promises to competing jobs, over random histories of submits, ends, measurements and noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, Plan, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.snapshot import Measurement, SlotKey, Snapshot
from service.domain.contention.costs import change_s
from service.domain.contention.rate import IMPOSED, with_imposed_change
from service.domain.jobs.job import Job, size_of
from service.domain.policies.registry import policy
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

SLOTS = 4
RULES = ContentionRules(min_run_s=60.0, max_wait_s=120.0)
STEP_S = 15.0
MEASURED_S = 15.0
"""After so long at a size its speed is measured."""


@dataclass(frozen=True)
class Step:
    """Events before a round: jobs come (minimum and maximum), end (by place), or are fixed at their present size."""

    comes: tuple[tuple[int, int], ...] = ()
    ends: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()


@st.composite
def steps(draw: st.DrawFn) -> Step:
    sizes = st.integers(1, 3).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, SLOTS)))
    return Step(
        comes=tuple(draw(st.lists(sizes, max_size=2))),
        ends=tuple(draw(st.lists(st.integers(0, 7), max_size=1))),
        pins=tuple(draw(st.lists(st.integers(0, 7), max_size=1))) if draw(st.booleans()) else (),
    )


@dataclass
class Cluster:
    """A node of four slots, on which every decision is carried out at once."""

    policy: str
    noise: np.random.Generator
    jobs: dict[str, Job] = field(default_factory=dict)
    held: dict[SlotKey, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    measured: dict[str, dict[int, Measurement]] = field(default_factory=dict)
    now_s: float = 0.0
    number: int = 0

    def live(self, step: Step) -> tuple[Snapshot, Plan]:
        """Let time pass, then hold a round and carry it out."""
        self.now_s += STEP_S
        for place in step.ends:
            ids = [job.id for job in self.jobs.values() if job.state is JobState.RUNNING]
            if ids:
                self._end(ids[place % len(ids)])
        for low, high in step.comes:
            self.number += 1
            name = f"{'abc'[self.number % 3]}-{self.number}"
            spec = spec_of(name, elastic={"min": low, "max": high})
            now = self.now
            self.jobs[name] = replace(job_of(name, spec=spec), submitted_at=now, state_since=now)
        for place in step.pins:
            running = [job for job in self.jobs.values() if job.state is JobState.RUNNING]
            if running:
                job = running[place % len(running)]
                self.jobs[job.id] = replace(job, pinned_size=size_of(job.allocation))
        self._measure()
        snapshot = self.snapshot()
        plan = decide(build_round(snapshot), policy(self.policy), solve)
        return snapshot, plan

    @property
    def now(self):  # type: ignore[no-untyped-def]
        return NOW + timedelta(seconds=self.now_s)

    def snapshot(self) -> Snapshot:
        of_class: dict[str, tuple[Measurement, ...]] = {}
        for job_id, measured in self.measured.items():
            name = f"default/{job_id.split('-')[0]}"
            of_class[name] = (*of_class.get(name, ()), *measured.values())
        return replace(
            snapshot_of([node_of("n", slots=SLOTS)]),
            now=self.now,
            jobs=dict(self.jobs),
            held=dict(self.held),
            measurements={
                job: tuple(each.values()) for job, each in self.measured.items() if job in self.jobs
            },
            class_measurements=of_class,
            contention=RULES,
        )

    def carry_out(self, plan: Plan) -> None:
        for one in sorted(plan.changes, key=lambda one: one.action is not Action.VACATE):
            self._carry_out(one)
        # A second pass for what waited for slots that others have left within the round.
        for key in list(self.held):
            assert self.held[key] in self.jobs

    def _carry_out(self, one: Decision) -> None:
        job = self.jobs[one.job_id]
        if one.reason in IMPOSED and one.action in {Action.CHANGE, Action.VACATE}:
            stopped = one.action is Action.VACATE and one.reason is Reason.PREEMPTED
            imposed = with_imposed_change(job.progress, self.now, change_s(job), stopped=stopped)
            job = replace(job, progress=imposed)
        self.held = {key: holder for key, holder in self.held.items() if holder != job.id}
        if one.action is Action.VACATE:
            self.since.pop(job.id, None)
            job = replace(job, state=JobState.PENDING, allocation={}, state_since=self.now, live=False)
        else:
            keys = [SlotKey(node, slot) for node, slots in one.allocation.items() for slot in slots]
            assert not any(key in self.held for key in keys)
            self.held |= dict.fromkeys(keys, job.id)
            if one.action is Action.START:
                progress = job.progress.model_copy(update={"run_since": self.now})
                job = replace(job, progress=progress, live=True)
            self.since[job.id] = self.now_s
            job = replace(
                job,
                state=JobState.RUNNING,
                allocation=one.allocation,
                state_since=self.now,
                generation=job.generation + 1,
            )
        self.jobs[job.id] = job

    def _end(self, job_id: str) -> None:
        del self.jobs[job_id]
        self.held = {key: holder for key, holder in self.held.items() if holder != job_id}

    def _measure(self) -> None:
        for job in self.jobs.values():
            if job.state is JobState.RUNNING and self.now_s - self.since[job.id] >= MEASURED_S:
                slots = size_of(job.allocation)
                speed = 100.0 * slots**0.8 * float(np.exp(0.1 * self.noise.standard_normal()))
                step_s = 64.0 / speed
                self.measured.setdefault(job.id, {})[slots] = Measurement(
                    "cpu",
                    slots,
                    speed,
                    50,
                    generation=job.generation,
                    global_batch=64,
                    local_batch=max(1, 64 // slots),
                    step_s=step_s,
                    step_s_spread=0.1 * step_s,
                )


def seated(job: Job) -> int:
    """The fewest slots that a job may have now."""
    return min(job.sizes)


def histories(name: str, seed: int, many: list[Step]):  # type: ignore[no-untyped-def]
    """Every round of a history: the snapshot, the plan, and the cluster after it."""
    cluster = Cluster(name, np.random.default_rng(seed))
    for step in many:
        snapshot, plan = cluster.live(step)
        cluster.carry_out(plan)
        yield snapshot, plan, cluster


HISTORIES = st.lists(steps(), min_size=4, max_size=10)
SHARING = ("goodput", "fair", "pollux", "sia", "idle-fill", "budget", "elastic-dp", "ones")
PREEMPTING = (*SHARING, "las", "srtf", "gavel")


@pytest.mark.parametrize("name", SHARING)
@given(many=HISTORIES, seed=st.integers(0, 99))
@settings(max_examples=5)
def test_every_job_has_its_minimum_while_all_minimums_fit(name: str, many: list[Step], seed: int) -> None:
    waits: dict[str, int] = {}
    for snapshot, _, cluster in histories(name, seed, many):
        fit = sum(map(seated, snapshot.jobs.values())) <= SLOTS
        for job in cluster.jobs.values():
            waiting = fit and job.state is JobState.PENDING
            waits[job.id] = waits.get(job.id, 0) + 1 if waiting else 0
            # One round for those who make room, one to start on what they left.
            assert waits[job.id] <= 1, job.id


@pytest.mark.parametrize("name", PREEMPTING)
@given(many=HISTORIES, seed=st.integers(0, 99))
@settings(max_examples=5)
def test_no_run_ends_early_and_no_fixed_size_is_taken(name: str, many: list[Step], seed: int) -> None:
    for snapshot, plan, _ in histories(name, seed, many):
        for one in plan.changes:
            job = snapshot.jobs[one.job_id]
            if one.action is Action.VACATE and one.reason is Reason.PREEMPTED:
                assert job.progress.run_since is not None
                assert (snapshot.now - job.progress.run_since).total_seconds() >= RULES.min_run_s
            if one.action is not Action.START and job.pinned_size == size_of(job.allocation):
                assert one.action is Action.ADAPT or size_of(one.allocation) == job.pinned_size


@pytest.mark.parametrize("name", PREEMPTING)
@given(many=HISTORIES, seed=st.integers(0, 99))
@settings(max_examples=5)
def test_unmeasured_sizes_are_tried_with_free_slots_one_at_a_time(
    name: str, many: list[Step], seed: int
) -> None:
    for snapshot, plan, _ in histories(name, seed, many):
        tries = []
        for one in plan.changes:
            job, slots = snapshot.jobs[one.job_id], size_of(one.allocation)
            now = size_of(job.allocation)
            known = {each.slots for each in snapshot.measurements.get(job.id, ())}
            known |= {
                each.slots
                for each in snapshot.class_measurements.get(f"default/{job.name.split('-')[0]}", ())
            }
            if one.action is Action.CHANGE and slots > now and slots not in known:
                tries.append(slots - now)
                assert slots <= 2 * max([now, *known]) or slots == min(
                    size for size in job.sizes if size > now
                )
        assert len(tries) <= 1
        assert sum(tries) <= len(snapshot.free)


@pytest.mark.parametrize("name", PREEMPTING)
@given(many=HISTORIES, seed=st.integers(0, 99))
@settings(max_examples=2)
def test_no_wait_is_longer_than_promised(name: str, many: list[Step], seed: int) -> None:
    fixed = [replace(step, pins=()) for step in many]
    quiet = [Step()] * int((RULES.max_wait_s + 6 * RULES.min_run_s) / STEP_S)
    cluster = Cluster(name, np.random.default_rng(seed))
    latest: dict[str, float] = {}
    for step in [*fixed, *quiet]:
        snapshot, plan = cluster.live(step)
        contest = plan.round.contest
        for row, job in enumerate(plan.round.jobs):
            if snapshot.slots_held_by(job.id):
                latest.pop(job.id, None)
            else:
                by_s = cluster.now_s + float(contest.latest_turn_s[row])
                latest[job.id] = min(latest.get(job.id, by_s), by_s)
        cluster.carry_out(plan)
        for job_id, by_s in latest.items():
            # Slots that are freed in a round can be taken in the next one: two rounds for each turn.
            late_s = cluster.now_s - by_s - 2 * STEP_S * len(cluster.jobs)
            job = cluster.jobs.get(job_id)
            if job is not None and job.state is JobState.PENDING:
                assert late_s <= 2 * STEP_S, job_id
