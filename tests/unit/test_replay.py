"""The replay of job streams: nothing is lost, work is conserved, capacity holds, time only goes forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replay.engine import BrokenChoice, Record, Replay
from benchmarks.replay.metrics import summarise
from benchmarks.replay.profiles import EPOCHS, Application, NoData, read_application
from benchmarks.replay.worlds import Job, Pool, Rules, World, columns
from service.domain.allocation.knapsack.problem import NOTHING, Problem, Solution
from service.domain.policies.policy import Choices, RoundInput

POOLS = (Pool("slow", 2, 2), Pool("fast", 1, 4))
CONFIGURATIONS, ROWS = columns(POOLS)
STEADY = Application(
    "steady", np.array([0.0, 100.0, 400.0]), np.tile(CONFIGURATIONS.slots * 1.0, (2, 1)), 7.0
)
"""A sample per second and slot, 400 samples, restarts of 7 s."""
SPEEDING = Application(
    "speeding", np.array([0.0, 60.0, 360.0]), np.outer([1.0, 3.0], CONFIGURATIONS.slots), 5.0
)
"""Three times as fast in its second epoch."""

EVERY_MINUTE = Rules()

Decide = Callable[[RoundInput], Sequence[int]]


@dataclass
class Scripted:
    """A policy that gives what a function says, and keeps what it saw and gave."""

    decide: Decide
    rounds: list[tuple[RoundInput, list[int]]] = field(default_factory=list)
    name: str = "scripted"

    def choose(self, given: RoundInput, solve: object) -> Choices:
        chosen = np.array(self.decide(given), dtype=np.int64)
        self.rounds.append((given, chosen.tolist()))
        jobs = len(chosen)
        solution = Solution(chosen=chosen, objective=0.0, bound=0.0, prices=np.zeros(2), status="optimal")
        return Choices(
            chosen=chosen, utility=np.zeros((jobs, 1)), idle=np.zeros(jobs), unit="none", solution=solution
        )


def no_solver(problem: Problem) -> Solution:
    raise AssertionError("scripted policies need none")


def world(*jobs: tuple[float, Application]) -> World:
    applications = (STEADY, SPEEDING)
    stream = [Job(f"job-{at}", at, applications.index(application), 2) for at, application in jobs]
    return World(CONFIGURATIONS, ROWS, applications, tuple(stream))


def replay(scene: World, decide: Decide, rules: Rules = EVERY_MINUTE) -> tuple[Record, Scripted]:
    policy = Scripted(decide)
    return Replay(scene, policy, no_solver, rules, clock=lambda: 0.0).run(), policy


def everyone_gets(column: int) -> Decide:
    return lambda given: [column] * len(given.current)


def test_columns_are_powers_of_two_and_whole_nodes() -> None:
    assert CONFIGURATIONS.slots.tolist() == [1, 2, 4, 1, 2, 4]
    assert CONFIGURATIONS.nodes.tolist() == [1, 1, 2, 1, 1, 1]
    assert [row.capacity for row in ROWS] == [4.0, 4.0]
    assert ROWS[1].demand.tolist() == [0, 0, 0, 1, 2, 4]


def test_one_job_ends_when_arithmetic_says() -> None:
    record, _ = replay(world((10.0, STEADY)), everyone_gets(1))
    (run,) = record.runs
    assert run.started_s == 60.0  # the first round after its submit
    assert run.finished_s == pytest.approx(60.0 + 7.0 + 400.0 / 2)
    assert run.served_slot_s == pytest.approx(2 * (7.0 + 200.0))
    assert run.changes == 0


def test_the_speed_is_that_of_each_epoch() -> None:
    record, policy = replay(world((0.0, SPEEDING)), everyone_gets(0))
    assert record.runs[0].finished_s == pytest.approx(60.0 + 5.0 + 60.0 + 300.0 / 3)
    at_180_s = policy.rounds[2][0]
    assert at_180_s.remaining[0] == pytest.approx(300.0 - 3 * (180.0 - 125.0))
    assert at_180_s.goodput[0, 0] == 3.0


@pytest.mark.parametrize(("live_pause_s", "pause_s"), [(None, 7.0), (1.0, 1.0)])
def test_a_change_costs_a_restart_or_a_live_pause(live_pause_s: float | None, pause_s: float) -> None:
    def grows(given: RoundInput) -> list[int]:
        return [0 if given.age_s[0] < 100.0 else 2]

    record, policy = replay(world((0.0, STEADY)), grows, Rules(live_pause_s=live_pause_s))
    trained_before = 60.0 - 7.0
    assert record.runs[0].finished_s == pytest.approx(120.0 + pause_s + (400.0 - trained_before) / 4)
    assert record.runs[0].changes == 1
    assert policy.rounds[0][0].change_s[0] == pause_s


def test_a_start_from_nothing_is_a_restart_even_where_changes_are_live() -> None:
    def stops_for_a_round(given: RoundInput) -> list[int]:
        return [NOTHING if given.age_s[0] == 120.0 else 0]

    record, policy = replay(world((0.0, STEADY)), stops_for_a_round, Rules(live_pause_s=1.0))
    assert record.runs[0].finished_s == pytest.approx(180.0 + 7.0 + 400.0 - (60.0 - 7.0))
    assert [seen.waited_s[0] for seen, _ in policy.rounds[:4]] == [60.0, 0.0, 60.0, 0.0]


def test_rounds_follow_events_where_they_should() -> None:
    rules = Rules(on_events=True)
    record, policy = replay(world((10.0, STEADY), (500.0, STEADY)), everyone_gets(0), rules)
    assert [run.started_s for run in record.runs] == [10.0, 500.0]
    assert [run.finished_s for run in record.runs] == [417.0, 907.0]
    assert max(np.diff([at_s for at_s, _ in record.load if at_s < 417.0])) <= 60.0
    assert len(policy.rounds) == len(record.load)


def test_a_policy_that_gives_nothing_leaves_jobs_unfinished() -> None:
    scene = world((0.0, STEADY))
    record, _ = replay(scene, everyone_gets(NOTHING), Rules(give_up_s=600.0))
    summary = summarise(scene, record)
    assert (summary.unfinished, summary.rounds) == (1, 11)
    assert summary.avg_jct_h == pytest.approx(660.0 / 3600)


def test_too_much_is_refused() -> None:
    with pytest.raises(BrokenChoice, match="6 of 4 slow"):
        replay(world(*[(0.0, STEADY)] * 3), everyone_gets(1))


def test_what_a_job_cannot_run_on_is_refused() -> None:
    cannot = Application("cannot", STEADY.boundaries, STEADY.goodput * (CONFIGURATIONS.kind == 0), 7.0)
    scene = World(CONFIGURATIONS, ROWS, (cannot,), (Job("job", 0.0, 0, 1),))
    with pytest.raises(BrokenChoice, match="may not have"):
        replay(scene, everyone_gets(3))


@settings(max_examples=15, deadline=None)
@given(
    submits_s=st.sets(st.integers(0, 900), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    live_pause_s=st.sampled_from([None, 1.0]),
)
def test_work_and_slots_add_up_whatever_is_decided(
    submits_s: set[int], seed: int, live_pause_s: float | None
) -> None:
    """What a job was given from round to round, added up here step by step, is the work that it came with."""
    random = np.random.default_rng(seed)

    def anything(given: RoundInput) -> list[int]:
        chosen = np.full(len(given.current), NOTHING)
        for job in random.permutation(len(chosen)):
            column = int(random.integers(0, 6))
            left = [row.capacity - row.demand[chosen[chosen != NOTHING]].sum() for row in ROWS]
            if CONFIGURATIONS.slots[column] <= left[CONFIGURATIONS.kind[column]]:
                chosen[job] = column
        return chosen.tolist()

    scene = world(*[(float(at_s), STEADY) for at_s in sorted(submits_s)])
    rules = Rules(live_pause_s=live_pause_s, on_events=live_pause_s is not None)
    record, policy = replay(scene, anything, rules)
    rounds_s = [at_s for at_s, _ in record.load]
    assert all(np.diff(rounds_s) > 0)
    for run in record.runs:
        given_to_it = [
            (at_s, column)
            for at_s, (seen, chosen) in zip(rounds_s, policy.rounds, strict=True)
            for age_s, column in zip(seen.age_s, chosen, strict=True)
            if round(at_s - age_s, 6) == run.submit_s
        ]
        work, slot_s = _added_up(given_to_it, run.finished_s, live_pause_s)
        assert work == pytest.approx(run.total)
        assert slot_s == pytest.approx(run.served_slot_s)


def _added_up(
    given: Sequence[tuple[float, int]], end_s: float, live_pause_s: float | None
) -> tuple[float, float]:
    """Work and slot-seconds of a steady job that was given these columns at these times."""
    work = slot_s = pause_s = 0.0
    held = NOTHING
    for (at_s, column), until_s in zip(given, [*(at_s for at_s, _ in given[1:]), end_s], strict=True):
        if column != held:
            pause_s = 7.0 if held == NOTHING or live_pause_s is None else live_pause_s
            held = column
        if column != NOTHING:
            paused_s = min(pause_s, until_s - at_s)
            pause_s -= paused_s
            work += CONFIGURATIONS.slots[column] * (until_s - at_s - paused_s)
            slot_s += CONFIGURATIONS.slots[column] * (until_s - at_s)
    return work, slot_s


def test_jobs_on_an_equal_share_of_their_own_are_treated_fairly() -> None:
    scene = world((0.0, STEADY), (0.0, STEADY))
    record, _ = replay(scene, lambda given: [2, 5][: len(given.current)], Rules(on_events=True))
    summary = summarise(scene, record)
    assert summary.worst_fairness == pytest.approx(1.0)
    assert summary.avg_jct_h == pytest.approx(107.0 / 3600)
    assert summary.gpu_h == pytest.approx(4 * 107.0 / 3600)
    assert summary.changes == 0


def write_profiles(folder: Path) -> None:
    """An application of 0.1 s and 0.01 s per sample of a slot, plus 0.1 s of synchronisation for each node beyond one."""
    folder.mkdir()
    lines = ["placement,local_bsz,step_time,sync_time"]
    lines += [
        f"{placement},{batch},{0.1 + 0.01 * batch + 0.1 * (nodes - 1)},{0.1 * (nodes - 1)}"
        for placement, nodes in {"1": 1, "2": 1, "22": 2}.items()
        for batch in (10, 20)
    ]
    (folder / "placements-slow.csv").write_text("\n".join(lines))
    far = [f"4,8,{batch},{0.1 + 0.01 * batch + 0.3},0.3" for batch in (10, 20)]
    header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    (folder / "scalability-slow.csv").write_text("\n".join([header, *far]))
    for batch, gain in ((40, 1.0), (80, 1.5)):
        epochs = [f"{100 * epoch},{100 * epoch / gain},0,1,1" for epoch in range(1, EPOCHS[folder.name] + 3)]
        table = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *epochs])
        (folder / f"validation-{batch}.csv").write_text(table)


def test_profiles_become_goodput(tmp_path: Path) -> None:
    configurations, _ = columns((Pool("slow", 4, 2),))
    write_profiles(tmp_path / "bert")
    application = read_application(tmp_path / "bert", configurations)
    assert application.boundaries.tolist() == [0.0, 4000.0, 8000.0]
    best = dict(zip(configurations.slots.tolist(), application.goodput[0], strict=True))
    # One slot takes 40 samples in two passes of 20; the larger batch, in four, makes 1.5 times the progress in twice the time.
    assert best[1] == pytest.approx(40 / (2 * 0.3))
    # Eight slots take the larger batch in one pass of 10 each.
    assert best[8] == pytest.approx(1.5 * 40 / (0.2 + 0.3))
    # Three nodes are between two and four of them; 80 samples are 13.3 on each of six slots.
    assert best[6] == pytest.approx(1.5 * 40 / (0.1 + 0.01 * 80 / 6 + 0.2))


def test_what_was_never_measured_is_an_error(tmp_path: Path) -> None:
    write_profiles(tmp_path / "bert")
    configurations, _ = columns((Pool("slow", 8, 2),))
    with pytest.raises(NoData, match="10 slots on 5 nodes"):
        read_application(tmp_path / "bert", configurations)
    with pytest.raises(NoData, match=r"placements-other\.csv"):
        read_application(tmp_path / "bert", columns((Pool("other", 1, 2),))[0])
