"""Leases and epochs, for which the rhythms of policies leave running jobs their slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.domain.cluster.contention_rules import ContentionRules
from service.domain.policies.registry import policy
from service.simulation.replay.engine import replay
from service.simulation.replay.jobs import ReplayJobs, Tables
from tests.unit.service.simulation.scenes import EVERY_MINUTE, SPEEDING, STEADY, world


def test_a_started_job_keeps_its_slots_for_the_lease_of_gavel() -> None:
    """Eight jobs compete for eight slots on two kinds. A lease ends early only for the minimum of another job."""
    rules = replace(EVERY_MINUTE, on_events=True)
    long = replace(STEADY, boundaries=np.array([0.0, 5000.0]), goodput=STEADY.goodput[:1])
    scene = world(*[(10.0 * job, STEADY) for job in range(8)], rules=rules)
    scene = replace(scene, applications=(long, SPEEDING))
    found = replay(scene, policy("gavel"))
    ends = found.jobs.end_s[found.segments.job]
    cut = found.segments.to_s < ends
    held_s = found.segments.to_s - found.segments.from_s
    assert np.isfinite(found.jobs.end_s).all()
    assert cut.sum() >= 20
    assert np.median(held_s[cut]) >= 360.0
    assert (held_s[cut] >= 360.0).mean() >= 0.8


@pytest.mark.parametrize(("after_s", "within"), [(1.0, True), (49.0, True), (51.0, False)])
def test_an_epoch_lasts_as_long_as_its_samples_take(after_s: float, within: bool) -> None:
    """The first epoch of the application has 100 samples, at two a second."""
    scene = world((0.0, STEADY))
    jobs = ReplayJobs(scene, Tables(scene))
    row, first, epochs = np.array([0]), np.array([0]), ContentionRules(whole_epochs=True)
    assert not jobs.leased(row, first, 5.0, epochs).any()
    jobs.give(row, np.array([1]), 0.0, EVERY_MINUTE)
    assert jobs.leased(row, first, 7.0 + after_s, epochs).tolist() == [within]
