"""Deadlines of a round: seconds left, P90 finishes, and the configurations that a job may change to."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress, Reason
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.decision.plan import Action
from service.domain.allocation.inputs.deadlines import deadlines_of, late_s_of
from service.domain.allocation.inputs.estimates import estimates_of
from service.domain.allocation.inputs.notes import Note, notes_of
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.inputs.searching import searches_of
from service.domain.allocation.limits.tenancy import tenancy_of
from service.domain.cluster.snapshot import Limit, Snapshot, Tenant
from service.domain.contention.deadline_plan import Deadlines
from service.domain.perf.forecast import Z90
from tests.unit.service.builders import NOW, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, decisions, elastic_job, on, speeds

TOTAL = 36_000
SPEEDS = speeds(*[(slots, 10.0 * slots**0.9) for slots in range(1, 9)])


def goal(left_s: float, **fields: Any) -> dict[str, Any]:
    return {"deadline": NOW + timedelta(seconds=left_s), **fields}


def two(left_s: float | None, **fields: Any) -> Snapshot:
    """Two jobs of 36,000 samples on four slots each, of which the second may have a deadline."""
    progress = JobProgress(total_samples=TOTAL)
    wanted = {} if left_s is None else {"goal": goal(left_s)}
    jobs = [
        elastic_job("a", high=8, state=RUNNING, progress=progress),
        elastic_job("b", high=8, state=RUNNING, **{"progress": progress, **wanted, **fields}),
    ]
    held = {"a": on("n", 0, 1, 2, 3), "b": on("n", 4, 5, 6, 7)}
    return snapshot_of([node_of("n", 8)], jobs, held, {"a": SPEEDS, "b": SPEEDS})


def deadlines(snapshot: Snapshot) -> Deadlines | None:
    scope = scope_of(snapshot)
    estimates = estimates_of(scope)
    notes = notes_of(scope, estimates)
    tenancy = tenancy_of(snapshot, scope.jobs, scope.columns, scope.capacities, notes.allowed, scope.current)
    return deadlines_of(scope, estimates, notes, searches_of(scope, estimates, notes), tenancy)


def late_s(snapshot: Snapshot, row: int = 0) -> dict[int, float]:
    """P90 seconds of a job by size."""
    scope = scope_of(snapshot)
    found = late_s_of(scope, estimates_of(scope))[row]
    return dict(zip(scope.columns.configurations.slots.tolist(), found.tolist(), strict=True))


def test_a_round_without_deadlines_has_none() -> None:
    assert deadlines(two(None)) is None


def test_the_seconds_left_and_the_promise_come_from_the_job_files() -> None:
    found = deadlines(two(600, goal=goal(600, admit="reject"), priority=70))
    assert found is not None
    assert found.left_s.tolist() == [math.inf, 600.0]
    assert found.promised.tolist() == [False, True]
    assert found.priority.tolist() == [50.0, 70.0]
    assert not found.visiting.any()
    assert found.rows == ()


def test_a_search_visits_until_it_has_settled() -> None:
    searching = two(600, goal=goal(60_000, search="full"), live=True)
    for measured, visits in ((SPEEDS[3:4], True), (SPEEDS, False)):
        found = deadlines(replace(searching, measurements={"a": SPEEDS, "b": measured}))
        assert found is not None
        assert found.visiting.tolist() == [False, visits]


def test_the_claims_of_projects_are_limits() -> None:
    snapshot = two(600)
    quota = Tenant().quota.model_copy(update={"slots": 2})
    newcomer = elastic_job("c", project="team")
    snapshot = replace(
        snapshot, jobs={**snapshot.jobs, "c": newcomer}, projects={"team": Tenant(quota=quota)}
    )
    found = deadlines(snapshot)
    assert found is not None
    assert [row.name for row in found.rows] == ["lent/team"]


def test_the_finish_counts_the_change_but_not_where_the_job_is() -> None:
    snapshot = two(600)
    by_size = late_s(snapshot)
    expected = TOTAL / (10 * 4**0.9)
    assert by_size[4] == pytest.approx(expected, rel=0.1)
    assert by_size[4] > expected
    moved = replace(snapshot, jobs={**snapshot.jobs, "a": replace(snapshot.jobs["a"], allocation={})})
    assert late_s(moved)[4] == by_size[4]


def test_a_waiting_job_counts_its_start() -> None:
    waiting = elastic_job("j", progress=JobProgress(total_samples=TOTAL, start_s=40.0, stop_s=2.0))
    running = elastic_job(
        "j", state=RUNNING, live=True, progress=JobProgress(total_samples=TOTAL, start_s=40.0, pause_s=0.2)
    )
    there = snapshot_of([node_of("n", 4)], [running], {"j": on("n", 0)}, {"j": SPEEDS[:4]})
    start = snapshot_of([node_of("n", 4)], [waiting], {}, {"j": SPEEDS[:4]})
    assert late_s(start)[1] - late_s(there)[1] == pytest.approx(42.0)
    assert late_s(start)[2] - late_s(there)[2] == pytest.approx(41.8)


def test_the_work_done_is_not_left() -> None:
    progress = JobProgress(samples=TOTAL // 2, total_samples=TOTAL)
    done, whole = (
        late_s(two(600, progress=one), 1)[4] for one in (progress, JobProgress(total_samples=TOTAL))
    )
    assert done == pytest.approx(whole / 2)
    over = late_s(two(600, progress=JobProgress(samples=TOTAL + 9, total_samples=TOTAL)), 1)[4]
    assert 0 < over < 1


def test_progress_is_what_is_left_of_a_job_that_ends_by_it() -> None:
    made = {"progress": TOTAL / 4, "total_progress": float(TOTAL)}
    by_progress = JobProgress(samples=TOTAL // 2, total_samples=TOTAL, **made)
    left, whole = (
        late_s(two(600, progress=one), 1)[4] for one in (by_progress, JobProgress(total_samples=TOTAL))
    )
    assert left == pytest.approx(whole * 3 / 4)


def test_ended_jobs_of_the_class_tell_the_work_of_a_job_that_does_not() -> None:
    snapshot = two(600, progress=JobProgress(), name="train-7")
    assert math.isnan(late_s(snapshot, 1)[4])
    known = replace(snapshot, ended_samples={"default/train": (float(TOTAL),) * 20, "other/x": (1.0,)})
    said = late_s(two(600), 1)[4]
    spread = math.log(late_s(known, 1)[4] / said) / Z90
    # The spread of 20 equal jobs is what the prior leaves of it.
    assert 0.1 < spread < 0.4


def test_samples_of_a_large_batch_are_worth_less() -> None:
    """The work is counted in reference samples, like the goodput."""
    batch = {"policy": "adaptive", "global": 32, "max_global": 256}
    noisy = [replace(one, global_batch=256, gradient_sqr=1.0, gradient_var=64.0) for one in SPEEDS]
    snapshot = replace(two(600, batch=batch, live=True), measurements={"a": SPEEDS, "b": tuple(noisy)})
    round_ = build_round(snapshot)
    prospects, held = round_.estimates.prospects, int(round_.scope.current[1])
    assert prospects.remaining[1] < 0.9 * TOTAL
    assert late_s(snapshot, 1)[4] == pytest.approx(prospects.remaining[1] / prospects.low[1, held])


def test_an_unknown_speed_has_no_finish() -> None:
    snapshot = replace(two(600), measurements={"a": SPEEDS})
    assert all(math.isnan(one) for one in late_s(snapshot, 1).values())
    found = deadlines(snapshot)
    assert found is not None
    assert np.isnan(found.late_s[1]).any()


def test_a_deadline_overrides_a_small_gain_but_no_limit_of_money() -> None:
    snapshot = two(60_000)
    found, notes = deadlines(snapshot), build_round(snapshot).notes
    assert found is not None
    assert (
        found.may == np.isin(notes.codes, (Note.OFFERED, Note.CURRENT, Note.NO_GAIN, Note.NOT_WORTH_IT))
    ).all()
    nodes = {"n": replace(snapshot.nodes["n"], usd_per_slot_h=1.0)}
    poor = replace(snapshot, nodes=nodes, limits={"b": Limit(1.05, "shrink")})
    found = deadlines(poor)
    assert found is not None
    codes = build_round(poor).notes.codes[1]
    assert (codes == Note.OVER_BUDGET).any()
    assert np.isinf(found.late_s[1, codes == Note.OVER_BUDGET]).all()
    assert not found.may[1, codes == Note.OVER_BUDGET].any()


def test_without_a_deadline_both_keep_their_slots() -> None:
    assert {one.action for one in decisions(two(None)).values()} == {Action.KEEP}


@pytest.mark.parametrize(("left_s", "size", "rest"), [(700, 7, 1), (900, 5, 3)])
def test_a_deadline_takes_the_surplus_of_another_job(left_s: float, size: int, rest: int) -> None:
    found = decisions(two(left_s))
    assert sum(map(len, found["a"].allocation.values())) == rest
    assert (found["a"].action, found["a"].reason) == (Action.CHANGE, Reason.BETTER_ALLOCATION)
    assert "makes room for the deadline of b" in found["a"].message
    assert f"is met on {size} cpu slots with 90 %" in found["b"].message


@pytest.mark.parametrize(("share", "reason"), [(0.5, Reason.DEADLINE), (2.0, Reason.BETTER_ALLOCATION)])
def test_a_change_for_a_deadline_has_its_own_reason(share: float, reason: Reason) -> None:
    """More slots gain little, so that only the deadline makes the job grow."""
    slow = speeds(*[(slots, 10.0 + 0.3 * slots) for slots in range(1, 9)])

    def alone(left_s: float) -> Snapshot:
        snapshot = two(left_s)
        held = {key: job for key, job in snapshot.held.items() if job == "b"}
        jobs = {"b": snapshot.jobs["b"]}
        return replace(snapshot, jobs=jobs, held=held, measurements={"b": slow})

    late = late_s(alone(600))
    assert late[5] < late[4]
    found = decisions(alone(late[5] + share * (late[4] - late[5])))["b"]
    assert found.reason is reason
    assert sum(map(len, found.allocation.values())) >= 5
