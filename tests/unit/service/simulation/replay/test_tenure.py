"""The replay tells the rules for competing jobs what the service tells them: rests, slots that are left, and reported ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from headway.contract.views.jobs import JobProgress
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.contention.rate import rests_s, with_imposed_change
from service.simulation.model.world import ClusterRules, Latencies
from service.simulation.replay.jobs import ReplayJobs, Tables
from service.simulation.replay.transitions import Transitions
from tests.unit.service.builders import NOW
from tests.unit.service.simulation.scenes import EVERY_MINUTE, SPEEDING, STEADY, world

ROW, PAIR = np.array([0]), np.array([1])
"""A job, and the column of two slots of the slow kind."""
SLOW = Latencies(run_s=1.0, grow_s=2.0, shrink_s=3.0, stop_s=4.0)


def _rules(latencies: Latencies | None) -> ClusterRules:
    live = {} if latencies is None else {"on_events": True, "live_pause_s": 0.3}
    return replace(EVERY_MINUTE, latencies=latencies, **live)


def started(latencies: Latencies | None) -> tuple[ReplayJobs, Transitions]:
    scene = world((0.0, STEADY), (0.0, STEADY), rules=_rules(latencies))
    long = replace(STEADY, boundaries=np.array([0.0, 4000.0]), goodput=STEADY.goodput[:1])
    scene = replace(scene, applications=(long, SPEEDING))
    jobs = ReplayJobs(scene, Tables(scene))
    transitions = Transitions(scene, jobs)
    transitions.give(ROW, PAIR, 0.0)
    return jobs, transitions


@pytest.mark.parametrize("stops_s", [(100.0,), (100.0, 200.0), (100.0, 200.0, 300.0), (100.0, 650.0)])
def test_a_stopped_job_rests_in_the_replay_as_long_as_in_the_service(stops_s: tuple[float, ...]) -> None:
    jobs, transitions = started(None)
    progress = JobProgress()
    for stop_s in stops_s:
        jobs.advance(ROW, stop_s)
        transitions.give(ROW, np.array([NOTHING]), stop_s)
        transitions.give(ROW, PAIR, stop_s + 1.0)
        progress = with_imposed_change(progress, NOW + timedelta(seconds=stop_s), 7.0, stopped=True)
    rests = []
    for after_s in (0.0, 10.0, 70.0, 200.0, 599.0, 601.0):
        now_s = stops_s[-1] + after_s
        live_s = rests_s(progress, NOW + timedelta(seconds=now_s))
        assert transitions.rests_s(np.array([0, 1]), now_s).tolist() == [pytest.approx(live_s), 0.0]
        rests.append(live_s)
    assert rests[0] >= 60.0
    assert rests[-1] == 0.0


def test_a_change_of_size_is_no_stop_and_needs_no_rest() -> None:
    jobs, transitions = started(None)
    jobs.advance(ROW, 100.0)
    transitions.give(ROW, np.array([0]), 100.0)
    assert transitions.rests_s(ROW, 101.0).tolist() == [0.0]


@pytest.mark.parametrize(("column", "slots"), [(NOTHING, 2.0), (0, 1.0), (2, 0.0)])
def test_slots_are_leaving_from_the_decision_until_they_are_free(column: int, slots: float) -> None:
    jobs, transitions = started(SLOW)
    jobs.advance(ROW, 20.0)
    assert transitions.leaving(np.array([0, 1])).tolist() == [0.0, 0.0]
    transitions.give(ROW, np.array([column]), 20.0)
    assert transitions.leaving(np.array([0, 1])).tolist() == [slots, 0.0]
    jobs.advance(ROW, 24.0)
    transitions.advance(ROW, 24.0)
    assert transitions.leaving(np.array([0, 1])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("now_s", "left_s"), [(5.0, np.inf), (17.0, 1990.0), (107.0, 1900.0)])
def test_a_job_reports_when_it_ends_once_it_trains(now_s: float, left_s: float) -> None:
    """It trains after its start of seven seconds, 4,000 samples at two a second."""
    jobs, _ = started(None)
    progress = jobs.progress_at(ROW, now_s)
    found = jobs.reported_left_s(ROW, jobs.phase_at(ROW, progress), progress, now_s)
    assert found.tolist() == [pytest.approx(left_s)]
