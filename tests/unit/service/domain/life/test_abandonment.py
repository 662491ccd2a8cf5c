"""Changes in place that are abandoned or overdue."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.agents import StopCommand
from headway.contract.views.jobs import JobState, Reason
from service.domain.life.changes import (
    READY_WITHIN_S,
    SWITCHED_WITHIN_S,
    dismiss_newcomers,
    end_overdue,
    give_up,
    newcomer_ready,
)
from service.domain.life.life import Life
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    TWO,
    alter,
    commands_of,
    ended,
    event_of,
    job_of,
    life_of,
    ordered,
    prepared,
    process_at,
    ready,
    stops,
    training,
)


def test_a_change_that_is_given_up_costs_only_its_newcomers() -> None:
    cluster = prepared({"n0": (0, 1), "n1": (0,)}, {"n0": (0,)})
    life = give_up(life_of(cluster), reason=Reason.USER_REQUEST, why="its user requested 1 slot", blame=False)
    job = life.job
    assert (job.state, job.reason, job.switch) == (JobState.RUNNING, Reason.USER_REQUEST, None)
    assert (job.generation, job.newest_generation, job.allocation) == (1, 2, {"n0": (0,)})
    assert (job.growth_failures, job.grow_after) == (0, None)
    assert stops(life) == [("n0", 2, 2, "kill"), ("n1", 2, 2, "kill")]
    assert ended(life) == [2]
    assert event_of(life, "abandon").data == {"reason": "its user requested 1 slot", "generation": 2}


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 10.0), (1, 20.0), (20, 600.0)])
def test_growth_rests_after_newcomers_that_fail(failures: int, wait_s: float) -> None:
    cluster = prepared()
    alter(cluster, growth_failures=failures, grow_after=cluster.tables.now)
    life = give_up(life_of(cluster), reason=Reason.USER_ERROR, why="a new rank failed", blame=True)
    after = life.now + timedelta(seconds=wait_s)
    assert (life.job.growth_failures, life.job.grow_after) == (failures + 1, after)
    assert event_of(life, "abandon").data["grow_after"] == after.isoformat()


def test_an_ordered_change_cannot_be_given_up() -> None:
    for cluster in (ordered(), training()):
        with pytest.raises(AssertionError):
            give_up(life_of(cluster), reason=Reason.USER_REQUEST, why="too late", blame=False)


def test_newcomers_are_dismissed_when_training_has_ended() -> None:
    idle = life_of(training())
    assert dismiss_newcomers(idle) is idle
    early = dismiss_newcomers(life_of(prepared()))
    assert (early.job.state, early.job.reason, early.job.switch) == (JobState.RUNNING, Reason.COMPLETED, None)
    assert stops(early) == [("n1", 2, 2, "kill")]
    late = dismiss_newcomers(life_of(ordered()))
    assert late.job.state is JobState.RESIZING
    assert late.job.switch is not None
    assert late.job.switch.stopping
    assert stops(late) == [("n1", 2, 2, "kill")]
    assert ended(late) == []


def overdue(cluster: Cluster, seconds: float) -> Life:
    cluster.tables.pass_time(seconds)
    return end_overdue(life_of(cluster))


def test_a_change_in_time_is_left_alone() -> None:
    for cluster, seconds in (
        (training(), 9e9),
        (prepared(), READY_WITHIN_S - 1),
        (ordered(), SWITCHED_WITHIN_S - 1),
    ):
        assert overdue(cluster, seconds).effects == ()


def test_late_newcomers_are_sent_away_and_growth_rests() -> None:
    cluster = prepared(FOUR)
    cluster.store(newcomer_ready(life_of(cluster), ready(2)))
    life = overdue(cluster, READY_WITHIN_S)
    assert (life.job.state, life.job.reason, life.job.switch) == (JobState.RUNNING, Reason.HUNG, None)
    assert life.job.grow_after == life.now + timedelta(seconds=10)
    assert stops(life) == [("n1", 2, 2, "kill")]
    assert "node-n1" in event_of(life, "abandon").data["reason"]


def test_only_nodes_of_late_newcomers_are_named() -> None:
    cluster = prepared({"n0": (0, 1), "n1": (0,), "n2": (0,)})
    cluster.store(newcomer_ready(life_of(cluster), ready(2)))
    why = event_of(overdue(cluster, READY_WITHIN_S), "abandon").data["reason"]
    assert "node-n2" in why
    assert "node-n1" not in why


def test_members_that_do_not_switch_in_time_restart_with_their_stacks() -> None:
    life = overdue(ordered(), SWITCHED_WITHIN_S)
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.HUNG)
    assert life.job.switching is None
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 2, 0, "kill")]
    assert all(stop.dump_stacks for stop in commands_of(life, StopCommand).values())
    assert life.job.growth_failures == 0


def test_a_change_of_a_job_that_is_stopped_has_no_deadline() -> None:
    cluster = ordered()
    switch = job_of(cluster).switch
    assert switch is not None
    alter(cluster, state=JobState.CANCELLING, switch=replace(switch, stopping=True))
    assert overdue(cluster, 9e9).effects == ()


def test_a_newcomer_that_never_gets_ready_leaves_the_job_training() -> None:
    cluster = prepared()
    cluster.take_command("n1")
    cluster.take_report("n1")
    cluster.tables.pass_time(READY_WITHIN_S)
    cluster.overdue()
    cluster.settle()
    assert (job_of(cluster).state, life_of(cluster).loaded_footprint.held) == (JobState.RUNNING, {1: TWO})
    assert process_at(cluster, "n0", 0) in cluster.processes
    assert len(cluster.processes) == 2
