"""Outlooks of jobs on their deadlines: verdicts, times, the nearest feasible ones, and who comes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.views.forecasts import DeadlineOutlook, DeadlineVerdict
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.decision.deadline_texts import (
    deadline_text,
    nearest_slots,
    outlook_of,
    room_for_deadlines,
)
from service.domain.allocation.inputs.deadlines import late_s_of
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.cluster.snapshot import Snapshot
from tests.unit.service.builders import NOW, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, speeds

SPEEDS = speeds(*[(slots, 10.0 * slots**0.9) for slots in (1, 2, 4)])


def waiting(name: str, left_s: float | None, high: int = 4, low: int = 1, **fields: Any) -> Any:
    """A job of 36,000 samples, an hour on one slot."""
    goal = {} if left_s is None else {"deadline": NOW + timedelta(seconds=left_s)}
    progress = JobProgress(total_samples=36_000)
    return elastic_job(name, low, high, **{"progress": progress, "goal": goal, **fields})


def cluster(*jobs: Any, slots: int = 4, **held: list[tuple[str, int]]) -> Snapshot:
    return snapshot_of([node_of("n", slots)], jobs, held, {job.id: SPEEDS for job in jobs})


def outlook(snapshot: Snapshot, row: int = 0) -> DeadlineOutlook:
    found = outlook_of(build_round(snapshot), row)
    assert found is not None
    return found


def p90_s(snapshot: Snapshot, size: int) -> float:
    round_: Round = build_round(snapshot)
    late_s = late_s_of(round_.scope, round_.estimates)[0]
    return float(late_s[round_.columns.configurations.slots == size][0])


def test_without_a_deadline_there_is_no_outlook() -> None:
    round_ = build_round(cluster(waiting("j", None)))
    assert outlook_of(round_, 0) is None
    assert deadline_text(round_, 0) == ""


def test_a_feasible_deadline_has_its_size_and_finish() -> None:
    snapshot = cluster(waiting("j", 86_400))
    found = outlook(snapshot)
    assert (found.verdict, found.slots, found.device_kind) == (DeadlineVerdict.FEASIBLE, 1, "cpu")
    assert found.starts_at == NOW
    assert found.finish_p90_at == NOW + timedelta(seconds=p90_s(snapshot, 1))
    assert (found.nearest_deadline, found.nearest_slots) == (None, None)
    assert found.deadline == NOW + timedelta(days=1)
    assert "is met on 1 cpu slot with 90 %, by 2026-11-01 13:" in found.message
    assert deadline_text(build_round(snapshot), 0) == found.message


def test_a_deadline_is_feasible_from_the_end_of_another_job() -> None:
    progress = JobProgress(total_samples=36_000)
    runs = elastic_job("a", 1, 1, state=RUNNING, progress=progress)
    snapshot = cluster(runs, waiting("b", 86_400, 1), slots=1, a=on("n", 0))
    found = outlook(snapshot, 1)
    assert (found.verdict, found.slots) == (DeadlineVerdict.FEASIBLE_FROM, 1)
    assert found.starts_at is not None
    assert found.starts_at == NOW + timedelta(seconds=p90_s(snapshot, 1))
    assert f"from {found.starts_at:%Y-%m-%d %H:%M} UTC on" in found.message


def test_an_infeasible_deadline_has_the_nearest_deadline_and_size() -> None:
    snapshot = cluster(waiting("j", 2_500, 1))
    found = outlook(snapshot)
    assert (found.verdict, found.slots) == (DeadlineVerdict.INFEASIBLE, None)
    assert found.nearest_deadline == NOW + timedelta(seconds=p90_s(snapshot, 1))
    assert "no size that its job file allows" in found.message
    assert nearest_slots(snapshot, "j") == 2


def test_no_size_of_the_cluster_is_enough() -> None:
    assert nearest_slots(cluster(waiting("j", 60, 1)), "j") is None


def test_a_miss_names_the_deadlines_and_the_minimums_that_come_first() -> None:
    jobs = [waiting("first", 1_400, 4, 4), waiting("second", 1_401, 4, 4)]
    found = outlook(cluster(*jobs), 1)
    assert found.verdict is DeadlineVerdict.INFEASIBLE
    assert "the deadlines of first leave too few slots" in found.message
    fixed = elastic_job("fixed", 4, 4, state=RUNNING)
    found = outlook(cluster(fixed, waiting("late", 1_400), fixed=on("n", 0, 1, 2, 3)), 1)
    assert "the smallest sizes of fixed leave too few slots" in found.message
    assert found.nearest_deadline is None


def test_jobs_of_other_projects_are_not_named() -> None:
    jobs = [waiting("first", 1_400, 4, 4, project="team"), waiting("second", 1_401, 4, 4)]
    message = outlook(cluster(*jobs), 1).message
    assert "first" not in message.replace("come first", "")
    assert "a job of another project" in message


def test_without_a_forecast_the_outlook_is_unknown() -> None:
    snapshot = cluster(waiting("j", 86_400, progress=JobProgress()))
    found = outlook(snapshot)
    assert (found.verdict, found.finish_p90_at, found.nearest_deadline) == (
        DeadlineVerdict.UNKNOWN,
        None,
        None,
    )
    known = replace(snapshot, ended_samples={"default/j": (36_000.0,)})
    assert outlook(known).verdict is DeadlineVerdict.FEASIBLE


@pytest.mark.parametrize(("left_s", "makes_room"), [(1_400.0, True), (86_400.0, False)])
def test_only_a_job_that_gains_slots_for_its_deadline_is_made_room_for(
    left_s: float,
    makes_room: bool,
) -> None:
    progress = JobProgress(total_samples=36_000)
    runs = elastic_job("a", 1, 4, state=RUNNING, progress=progress)
    due = waiting("b", left_s, state=RUNNING)
    snapshot = cluster(runs, due, slots=6, a=on("n", 0, 1, 2, 3), b=on("n", 4, 5))
    round_ = build_round(snapshot)
    assert bool(round_.contest.due[1])
    assert room_for_deadlines(round_, 0) == ("makes room for the deadline of b" if makes_room else "")
    assert room_for_deadlines(round_, 1) == ""
