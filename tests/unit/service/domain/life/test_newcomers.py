"""New ranks that fail after their growth was ordered or completed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract.runtime import EXIT_NEVER_RETRY, EXIT_RETRY
from headway.contract.views.jobs import JobState
from service.domain.jobs.failures import RankExit
from service.domain.jobs.membership import Born
from service.domain.life.changes import complete_switch
from service.domain.life.life import Life
from service.domain.life.losses import rank_ended
from tests.unit.service.domain.life.scenes import (
    alter,
    event_of,
    exit_of,
    kinds,
    life_of,
    ordered,
    switched,
    with_exits,
)

FAILED = exit_of(exit_code=1)


def after_exit(life: Life, who: Born, exit_: RankExit) -> Life:
    """The life after the report of one exit."""
    return rank_ended(with_exits(life, {who: exit_}), who, replace(exit_, rank=who[1]))


@pytest.mark.parametrize(
    "exit_", [FAILED, exit_of(exit_code=EXIT_RETRY), exit_of(exit_code=EXIT_NEVER_RETRY)]
)
def test_newcomer_failing_after_the_order_leaves_the_members_training(exit_: RankExit) -> None:
    life = after_exit(life_of(ordered()), (2, 2), exit_)
    assert (life.job.state, life.job.growth_failures) == (JobState.RECOVERING, 1)
    assert [(one.born_generation, one.born_rank) for one in life.crew.coming] == [(1, 0), (1, 1)]
    assert life.job.grow_after is not None
    assert event_of(life, "lose").data["counted"] is False


def test_newcomer_failing_after_the_switch_leaves_the_members_training() -> None:
    life = complete_switch(life_of(ordered()), switched())
    assert life.job.state is JobState.RUNNING
    life = after_exit(replace(life, effects=()), (2, 2), FAILED)
    assert (life.job.state, life.job.growth_failures) == (JobState.RECOVERING, 1)
    assert len(life.crew.coming) == 2
    message = event_of(life, "lose").message
    assert message is not None
    assert "a new rank failed" in message


def test_member_failing_beside_newcomers_fails_the_job() -> None:
    life = complete_switch(life_of(ordered()), switched())
    life = after_exit(replace(life, effects=()), (1, 0), FAILED)
    assert "lose" not in kinds(life)
    assert life.job.growth_failures == 0


def test_newcomers_failing_one_growth_after_another_are_tried_at_longer_intervals() -> None:
    cluster = ordered()
    alter(cluster, growth_failures=2, grow_after=cluster.tables.now)
    life = complete_switch(life_of(cluster), switched())
    life = after_exit(replace(life, effects=()), (2, 2), FAILED)
    assert life.job.growth_failures == 3
    assert life.job.grow_after is not None
    assert (life.job.grow_after - life.now).total_seconds() == 40.0
