"""Costs of changes in seconds of training: measured values, and defaults without them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S, START_S, STOP_S, change_s, restart_s
from tests.unit.service.builders import job_of

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
