"""Costs of changes in seconds of training: measured values, and defaults without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.cluster.snapshot import MeasuredRestart
from service.domain.cluster.usual_costs import START_S, STOP_S, UsualCosts, usual_costs
from service.domain.contention.costs import (
    LIVE_CHANGE_S,
    RESTART_S,
    change_s,
    restart_s,
)
from tests.unit.service.builders import job_of, node_of, snapshot_of

SECONDS = st.none() | st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("start_s", "stop_s", "cost_s"),
    [
        (None, None, RESTART_S),
        (10.0, None, 10.0 + STOP_S),
        (None, 2.0, START_S + 2.0),
        (10.0, 2.0, 12.0),
        (0.0, None, STOP_S),
    ],
)
def test_a_restart_costs_its_measured_stop_and_start(
    start_s: float | None, stop_s: float | None, cost_s: float
) -> None:
    assert restart_s(job_of(progress=JobProgress(start_s=start_s, stop_s=stop_s))) == cost_s


@pytest.mark.parametrize(
    ("live", "pause_s", "cost_s"),
    [
        (False, None, 12.0),
        (False, 0.1, 12.0),
        (True, None, LIVE_CHANGE_S),
        (True, 0.1, 0.1),
        (True, 0.0, 0.0),
        (True, 2.9, 2.9),
        (True, 99.0, RESTART_S),
    ],
)
def test_a_change_costs_a_pause_in_place_and_a_restart_otherwise(
    live: bool, pause_s: float | None, cost_s: float
) -> None:
    progress = JobProgress(start_s=10.0, stop_s=2.0, pause_s=pause_s)
    assert change_s(job_of("j", JobState.RUNNING, live=live, progress=progress)) == cost_s


@given(SECONDS, SECONDS, SECONDS, st.booleans())
def test_no_cost_is_negative_and_a_pause_never_costs_more_than_a_usual_restart(
    start_s: float | None, stop_s: float | None, pause_s: float | None, live: bool
) -> None:
    job = job_of(progress=JobProgress(start_s=start_s, stop_s=stop_s, pause_s=pause_s), live=live)
    assert 0.0 <= change_s(job) <= (RESTART_S if live else restart_s(job))


@given(st.lists(st.tuples(SECONDS, SECONDS)), st.lists(st.tuples(SECONDS, SECONDS)))
def test_ended_jobs_count_for_the_usual_costs_as_much_as_present_ones(
    present: list[tuple[float | None, float | None]], ended: list[tuple[float | None, float | None]]
) -> None:
    def usual(
        here: list[tuple[float | None, float | None]], gone: list[tuple[float | None, float | None]]
    ) -> UsualCosts:
        jobs = [
            job_of(str(number), progress=JobProgress(stop_s=stop_s, start_s=start_s))
            for number, (stop_s, start_s) in enumerate(here)
        ]
        restarts = tuple(MeasuredRestart(stop_s, start_s) for stop_s, start_s in gone)
        return usual_costs(replace(snapshot_of([node_of("n")], jobs), restarts=restarts))

    found = usual(present, ended)
    assert found == usual([*present, *ended], []) == usual([], [*ended, *present])
    for seconds, least_s, part in ((found.stop_s, STOP_S, 0), (found.start_s, START_S, 1)):
        measured_s = [one[part] for one in (*present, *ended) if one[part] is not None]
        if measured_s:
            assert max(least_s, min(measured_s)) <= seconds <= max(least_s, *measured_s)


@pytest.mark.parametrize(
    ("ended", "usual"),
    [
        ((), UsualCosts(STOP_S, START_S)),
        ((MeasuredRestart(stop_s=60.0, start_s=300.0),), UsualCosts(60.0, 300.0)),
        ((MeasuredRestart(start_s=300.0), MeasuredRestart(start_s=100.0)), UsualCosts(STOP_S, 200.0)),
        ((MeasuredRestart(start_s=300.0), MeasuredRestart(stop_s=4.0)), UsualCosts(4.0, 300.0)),
        ((MeasuredRestart(stop_s=0.1, start_s=0.1),), UsualCosts(STOP_S, START_S)),
    ],
)
def test_usual_costs_are_medians_with_defaults_for_parts_that_no_job_measured(
    ended: tuple[MeasuredRestart, ...], usual: UsualCosts
) -> None:
    assert usual_costs(replace(snapshot_of([node_of("n")]), restarts=ended)) == usual
