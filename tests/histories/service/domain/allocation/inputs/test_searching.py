"""A job that searches, from round to round: it visits, settles where its goal is met best, and gives way to others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.views.forecasts import SearchPhase
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.inputs.searching import search_view
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Limit, Measurement, Node, Served, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.registry import POLICIES, policy
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

BATCH = 64
POOR = {1: 100.0, 2: 190.0, 3: 200.0, 4: 205.0}
"""Samples per second by size, of a job that hardly gains from more than two slots."""


@dataclass
class Run:
    """One live job on nodes of eight slots, played in virtual time."""

    speeds: dict[int, float]
    goal: dict[str, Any]
    total: float = 1e5
    policy: str = "goodput"
    high: int = 4
    others: tuple[Job, ...] = ()
    held: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    samples: float = 0.0
    now_s: float = 0.0
    changed_s: float = 0.0
    steps: dict[int, float] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    node: Node = field(default_factory=lambda: node_of("n", slots=8))
    job: Job | None = None

    @property
    def size(self) -> int:
        return self.sizes[-1] if self.sizes else 0

    def snapshot(self) -> Snapshot:
        measured = tuple(
            Measurement(
                "cpu",
                size,
                self.speeds[size],
                int(steps),
                global_batch=BATCH,
                step_s=BATCH / self.speeds[size],
            )
            for size, steps in self.steps.items()
            if steps >= 10
        )
        spec = spec_of("j", elastic={"min": 1, "max": self.high}, batch={"global": BATCH}, goal=self.goal)
        before = self.job.progress.search if self.job is not None else None
        progress = JobProgress(
            samples=int(self.samples),
            total_samples=int(self.total) if self.steps else None,
            global_batch=BATCH,
            pause_s=0.1,
            search=before,
        )
        self.job = job_of(
            "j",
            JobState.RUNNING if self.size else JobState.PENDING,
            spec=spec,
            age_s=self.now_s - self.changed_s,
            live=bool(self.size),
            generation=len(self.sizes),
            progress=progress,
        )
        held = dict(self.held)
        if self.size:
            taken = {slot for slots in held.values() for _, slot in slots}
            free = [slot for slot in range(8) if slot not in taken]
            held["j"] = [("n", slot) for slot in free[: self.size]]
        picture = snapshot_of([self.node], [self.job, *self.others], held, {"j": measured})
        return replace(
            picture,
            usd_per_slot_h={"cpu": 1.0},
            served={"j": Served({"cpu": self.now_s}, self.now_s)},
        )

    def round(self) -> Decision:
        """Decide, and follow."""
        round_ = build_round(self.snapshot())
        assert self.job is not None
        step = round_.search.steps.get("j")
        if step is not None:
            view = search_view(self.job, step, round_.columns)
            self.job = replace(self.job, progress=self.job.progress.model_copy(update={"search": view}))
        plan = decide(round_, policy(self.policy, {}), solve)
        decision = next(one for one in plan.decisions if one.job_id == "j")
        if decision.action in {Action.START, Action.CHANGE}:
            self.sizes.append(sum(len(slots) for slots in decision.allocation.values()))
            self.changed_s = self.now_s
        return decision

    def train(self, seconds: float) -> None:
        self.now_s += seconds
        self.samples += seconds * self.speeds[self.size]
        self.steps[self.size] = self.steps.get(self.size, 0.0) + seconds * self.speeds[self.size] / BATCH

    def play(self, rounds: int = 40, every_s: float = 5.0) -> list[int]:
        """The sizes that it had, after so many rounds."""
        for _ in range(rounds):
            self.round()
            if self.size:
                self.train(every_s)
        return self.sizes

    @property
    def phase(self) -> SearchPhase | None:
        assert self.job is not None
        return self.job.progress.search.phase if self.job.progress.search is not None else None


def goal(search: str | None, objective: str = "time", **rest: Any) -> dict[str, Any]:
    return {"search": search, "objective": objective, **rest}


@pytest.mark.parametrize(
    ("objective", "last"), [("time", 4), ("cost", 1), ("balanced", 2)], ids=["time", "cost", "balanced"]
)
def test_it_sees_every_size_and_settles_on_the_best_for_its_goal(objective: str, last: int) -> None:
    run = Run(POOR, goal("full", objective), total=1e6)
    sizes = run.play()
    assert sizes[:4] == [1, 2, 3, 4]
    assert sizes[-1] == last
    assert len(sizes) <= 5, "and stays there"
    assert run.phase is SearchPhase.SETTLED


def test_partial_leaves_out_what_lies_between() -> None:
    sizes = Run(POOR, goal("partial", "balanced"), total=1e6).play()
    assert sizes[:3] == [1, 2, 4]
    assert sizes[-1] == 2


def test_without_a_search_a_job_does_as_it_did() -> None:
    run = Run(POOR, {}, total=1e6)
    run.play()
    assert run.phase is None
    assert run.sizes == [1, 2, 4], "at most to double of what was measured"


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"fair", "ones"}))
def test_under_every_policy_that_looks_at_speed_or_size_it_comes_to_where_it_wants_to_be(name: str) -> None:
    run = Run(POOR, goal("full", "balanced"), total=1e6, policy=name)
    # Pollux lets a job that was changed often wait for its next change, the longer the younger it is.
    assert run.play(rounds=120 if name == "pollux" else 40, every_s=20.0)[-1] == 2
    assert run.phase is SearchPhase.SETTLED


def test_a_short_job_stays_where_it_starts() -> None:
    run = Run(POOR, goal("full", "cost"), total=2_500)
    assert run.play(rounds=5) == [1]
    assert run.phase is SearchPhase.SETTLED


def test_a_deadline_that_needs_it_moves_the_job_to_more_slots() -> None:
    # 100,000 samples take 1,000 s on one slot, 526 s on two.
    run = Run(POOR, goal("full", "cost", deadline=NOW + timedelta(seconds=700)), total=1e5)
    assert run.play(rounds=12)[-1] == 2


def test_what_it_may_spend_is_what_the_ledger_has_left_of_its_money() -> None:
    run = Run(POOR, goal("full", max_cost_usd=1000.0), total=1e5)
    run.play()
    spent = replace(run.snapshot(), limits={"j": Limit(left_usd=0.01)})
    reasons = [build_round(picture).search.steps["j"].reason for picture in (run.snapshot(), spent)]
    assert "within the limits" in reasons[0]
    assert "no configuration keeps to the limits" in reasons[1]


def test_while_others_hold_the_slots_it_trains_on_what_it_has() -> None:
    rigid = job_of("o", JobState.RUNNING, spec=spec_of("o", elastic={"min": 6, "resize": "never"}), age_s=1e4)
    run = Run(POOR, goal("full"), total=1e6, others=(rigid,), held={"o": [("n", slot) for slot in range(6)]})
    assert run.play() == [1, 2]
    assert run.phase is SearchPhase.VISITING, "the larger sizes are seen when there is room"
    run.others, run.held = (), {}
    assert run.play()[-1] == 4


def test_the_reason_of_each_step_is_told() -> None:
    run = Run(POOR, goal("full", "cost"), total=1e6)
    first = run.round()
    assert "search: visit 1 of 4" in first.message
    run.train(60.0)
    assert "from 1 cpu slot to 2 cpu slots: search: visit 2 of 4" in run.round().message
    run.play()
    assert "search: the cheapest known configuration" in run.round().message


@pytest.mark.parametrize(("objective", "slots"), [("time", 4), ("cost", 1)])
def test_without_visits_a_job_starts_where_its_class_was_best(objective: str, slots: int) -> None:
    spec = spec_of("gpt-2", elastic={"min": 1, "max": 4}, goal=goal("none", objective))
    shown = tuple(
        Measurement("cpu", size, speed, 500, global_batch=BATCH)
        for size, speed in {1: 100.0, 4: 300.0}.items()
    )
    picture = replace(
        snapshot_of([node_of("n", slots=8)], [job_of("j", spec=spec)]),
        usd_per_slot_h={"cpu": 1.0},
        class_measurements={"default/gpt": shown},
    )
    (decision,) = decide(build_round(picture), policy("goodput", {}), solve).decisions
    assert decision.action is Action.START
    assert sum(len(held) for held in decision.allocation.values()) == slots
