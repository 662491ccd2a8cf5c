"""Priorities and promised slots, over random histories in which slots take a round to be released."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState
from service.domain.allocation.decision.plan import Action, Decision, Plan, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.contention.promises import promised_slots, with_promise
from service.domain.jobs.job import Job, size_of
from service.domain.policies.registry import policy
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

SLOTS = 4
ROUND_S = 5.0
RULES = ContentionRules(min_run_s=60.0, max_wait_s=1800.0)
RELEASE_ROUNDS = 2
"""Rounds from the order to stop until the slots are free."""


@dataclass(frozen=True)
class Arrival:
    """A job: rounds after the one before, its size, and its priority."""

    after: int
    size: int
    priority: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        after=st.integers(0, 20),
        size=st.integers(1, 3),
        priority=st.sampled_from((10, 50, 90)),
    ),
    min_size=2,
    max_size=6,
)


@dataclass
class Cluster:
    """A node of four slots. A job that is stopped leaves its slots `RELEASE_ROUNDS` rounds later."""

    jobs: dict[str, Job] = field(default_factory=dict)
    held: dict[SlotKey, str] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, tuple[datetime, frozenset[SlotKey]]] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    returns: list[str] = field(default_factory=list)
    """Jobs that were started on the slots that they had been stopped on within a minute."""
    broken: list[str] = field(default_factory=list)
    """Jobs that lost slots which were promised to them, although no job of a higher priority came."""

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.rounds * ROUND_S)

    def submit(self, one: Arrival) -> None:
        name = f"job{chr(97 + len(self.jobs))}"
        spec = spec_of(name, elastic={"min": one.size, "max": one.size}, priority=one.priority)
        self.jobs[name] = replace(job_of(name, spec=spec), submitted_at=self.now, state_since=self.now)

    def live(self) -> Plan:
        self.rounds += 1
        for job_id in [one for one, at in self.leaving.items() if at <= self.rounds]:
            del self.leaving[job_id]
            self.held = {key: holder for key, holder in self.held.items() if holder != job_id}
            job = replace(self.jobs[job_id], state=JobState.PENDING, allocation={}, state_since=self.now)
            self.jobs[job_id] = job
        for job_id in set(self.held.values()) - set(self.leaving):
            self.served[job_id] = self.served.get(job_id, 0) + 1
        snapshot = self.snapshot()
        plan = decide(build_round(snapshot), policy("goodput"), solve)
        for one in sorted(plan.decisions, key=lambda one: one.action is not Action.VACATE):
            self._carry_out(one, snapshot)
        return plan

    def snapshot(self) -> Snapshot:
        return replace(
            snapshot_of([node_of("n", slots=SLOTS)]),
            now=self.now,
            jobs=dict(self.jobs),
            held=dict(self.held),
            contention=RULES,
        )

    def _carry_out(self, one: Decision, snapshot: Snapshot) -> None:
        job = self.jobs[one.job_id]
        match one.action:
            case Action.WAIT:
                if promised_slots(job, snapshot) and one.promised is None:
                    self.broken.append(job.id)
                self.jobs[job.id] = with_promise(job, one.promised, self.now, one.stopped_for_it)
            case Action.VACATE:
                keys = frozenset(snapshot.slots_held_by(job.id))
                self.stopped[job.id] = (self.now, keys)
                self.leaving[job.id] = self.rounds + RELEASE_ROUNDS
                self.jobs[job.id] = replace(job, state=JobState.RESIZING)
            case Action.START:
                keys = frozenset(SlotKey(node, slot) for node, own in one.allocation.items() for slot in own)
                assert not keys & set(self.held), "slots are granted once"
                at, before = self.stopped.get(job.id, (NOW - timedelta(hours=1), frozenset()))
                if keys & before and (self.now - at).total_seconds() < 60.0:
                    self.returns.append(job.id)
                self.held |= dict.fromkeys(keys, job.id)
                progress = job.progress.model_copy(update={"run_since": self.now, "promise": None})
                self.jobs[job.id] = replace(
                    job,
                    state=JobState.RUNNING,
                    allocation=one.allocation,
                    state_since=self.now,
                    progress=progress,
                    generation=job.generation + 1,
                    newest_generation=job.newest_generation + 1,
                )
            case _:
                pass


def lived(arrivals: list[Arrival], then: int = 60) -> Cluster:
    cluster = Cluster()
    for one in arrivals:
        for _ in range(one.after):
            cluster.live()
        cluster.submit(one)
    for _ in range(then):
        cluster.live()
    return cluster


@given(arrivals=ARRIVALS)
@settings(max_examples=8)
def test_promised_slots_reach_their_job_and_no_job_returns_to_slots_that_it_just_left(
    arrivals: list[Arrival],
) -> None:
    cluster = lived(arrivals, then=30)
    assert cluster.returns == []
    assert cluster.broken == []


@given(arrivals=ARRIVALS)
@settings(max_examples=8)
def test_a_job_of_a_higher_priority_runs_at_least_as_long_as_one_that_it_could_replace(
    arrivals: list[Arrival],
) -> None:
    """Jobs submitted at once; a turn that a lower priority had cannot have begun before."""
    cluster = lived([replace(one, after=0) for one in arrivals], then=40)
    jobs = list(cluster.jobs.values())
    for high in jobs:
        for low in jobs:
            if low.spec.priority < high.spec.priority and min(low.sizes) >= min(high.sizes):
                assert cluster.served.get(high.id, 0) >= cluster.served.get(low.id, 0), (high.id, low.id)


def test_two_small_jobs_of_a_lower_priority_make_room_for_a_larger_one() -> None:
    small = [Arrival(after=0, size=1, priority=50)] * 4
    cluster = lived([*small, Arrival(after=2, size=2, priority=70)], then=8)
    large = list(cluster.jobs.values())[-1]
    assert size_of(large.allocation) == 2
    assert len(cluster.stopped) == 2
