"""Changes with latencies over whole replays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.policies.registry import policy
from service.simulation.model.world import Latencies, View
from service.simulation.replay.engine import replay
from tests.unit.service.simulation.replay.test_transitions import LIVE
from tests.unit.service.simulation.scenes import (
    CONFIGURATIONS,
    STEADY,
    anything_that_fits,
    scripted,
    world,
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    submits_s=st.sets(st.integers(-100, 900), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    latencies=st.builds(
        Latencies,
        run_s=st.sampled_from([0.0, 1.0]),
        grow_s=st.sampled_from([0.0, 3.0, 80.0]),
        shrink_s=st.sampled_from([0.0, 2.0]),
        stop_s=st.sampled_from([0.0, 60.0]),
    ),
)
def test_slots_add_up_whatever_is_decided_and_however_long_it_takes(
    submits_s: set[int], seed: int, latencies: Latencies
) -> None:
    rules = replace(LIVE, latencies=latencies)
    scene = world(*[(float(at_s), STEADY) for at_s in sorted(submits_s)], rules=rules)
    found, _ = scripted(scene, anything_that_fits(seed))
    assert (np.diff(found.rounds.time_s) > 0).all()
    assert np.isfinite(found.jobs.end_s).all()
    segments = found.segments
    for at_s in found.rounds.time_s:
        columns = segments.column[(segments.from_s <= at_s) & (at_s < segments.to_s)]
        for index, kind in enumerate(scene.kinds):
            assert CONFIGURATIONS.slots[columns[CONFIGURATIONS.kind[columns] == index]].sum() <= kind.slots


@pytest.mark.parametrize("name", ["goodput", "fifo", "srtf", "sia", "budget"])
def test_every_policy_brings_all_jobs_to_their_end(name: str) -> None:
    rules = replace(LIVE, view=View.LEARNED, interval_s=5.0)
    found = replay(world(*[(30.0 * index, STEADY) for index in range(8)], rules=rules), policy(name))
    assert np.isfinite(found.jobs.end_s).all()
