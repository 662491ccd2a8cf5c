"""Factors of topology levels: learned where measured, borrowed elsewhere, and never decreasing with the level."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.values.topology import LEVELS
from service.domain.perf.fit import fit
from service.domain.perf.levels import PRIOR_REACH, fit_with_levels, reach_at
from service.domain.perf.observations import Observations
from service.domain.perf.throughput import ThroughputModel, prior, step_time
from service.domain.shared.arrays import FloatArray, IntArray

NONE, NVLINK, RACK, ZONE, LINK = range(len(LEVELS) + 1)
TRUE = (1.0, 1.5, 2.5, 4.0, 8.0)
"""True factors of synchronisation within a group and across each level."""


def truth() -> ThroughputModel:
    """A job that spends as much time in synchronisation as in compute."""
    model = prior(compute_s=np.full(1, 0.1), local_batch=np.full(1, 32.0))
    sync = {name: np.full(1, 0.05) for name in ("alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")}
    return ThroughputModel(**{**{one.name: getattr(model, one.name) for one in fields(model)}, **sync})


def steps_of(slots: list[int], levels: list[int]) -> FloatArray:
    nodes = np.maximum(np.array(slots) // 2, 1)
    factor = np.array([TRUE[level] for level in levels])
    step_s, _ = step_time(
        truth(), slots=np.array([slots]), nodes=nodes[None], local_batch=32.0, reach=factor[None]
    )
    return step_s[0]


def observed(places: list[tuple[int, int]]) -> tuple[Observations, IntArray]:
    """Mean times of many steps on so many slots, two a node, across a level each."""
    slots, levels = [one[0] for one in places], [one[1] for one in places]
    many = np.ones(len(places))
    made = Observations(
        owner=np.zeros(len(places), np.int64),
        slots=np.array(slots, float),
        nodes=np.maximum(np.array(slots) // 2, 1).astype(float),
        local_batch=32.0 * many,
        accumulation=0.0 * many,
        step_s=steps_of(slots, levels),
        sync_s=np.nan * many,
        count=1000.0 * many,
    )
    return made, np.array(levels, dtype=np.int64)


WITHIN = [(1, NONE), (2, NONE), (4, NONE), (8, NONE)]


def test_without_levels_the_fit_is_the_same_to_the_last_digit() -> None:
    some, levels = observed(WITHIN)
    models, reach = fit_with_levels(some, levels, 1)
    assert reach is None
    expected = fit(some, 1)
    for one in fields(models):
        assert np.array_equal(getattr(models, one.name), getattr(expected, one.name))


def test_a_measured_level_teaches_its_own_factor_and_the_next_one_borrows_it() -> None:
    models, reach = fit_with_levels(*observed([*WITHIN, (4, RACK), (8, RACK)]), 1)
    assert reach is not None
    assert reach[0, RACK - 1] == pytest.approx(TRUE[RACK], rel=0.35)
    assert reach[0, ZONE - 1] / reach[0, RACK - 1] == pytest.approx(1.2)
    assert 1.0 <= reach[0, NVLINK - 1] <= reach[0, RACK - 1]
    step_s, _ = step_time(
        models,
        slots=np.array([[8]]),
        nodes=np.array([[4]]),
        local_batch=32.0,
        reach=reach[:, RACK - 1 : RACK],
    )
    assert step_s[0, 0] == pytest.approx(steps_of([8], [RACK])[0], rel=0.05)


def test_a_job_that_only_ever_crossed_a_level_is_predicted_there_as_measured() -> None:
    models, reach = fit_with_levels(*observed([(1, NONE), (2, NONE), (4, RACK), (8, RACK)]), 1)
    assert reach is not None
    np.testing.assert_allclose(reach[0], PRIOR_REACH)
    step_s, _ = step_time(
        models,
        slots=np.array([[8]]),
        nodes=np.array([[4]]),
        local_batch=32.0,
        reach=reach[:, RACK - 1 : RACK],
    )
    assert step_s[0, 0] == pytest.approx(steps_of([8], [RACK])[0], rel=0.05)
    assert models.nodes_tried[0] == 4


def test_a_class_is_the_prior_of_its_jobs() -> None:
    of_class = np.array([[1.5, 3.0, 5.0, 9.0]])
    few, levels = observed([(1, NONE)])
    models, reach = fit_with_levels(few, levels, 1, truth(), of_class)
    assert reach is of_class
    assert models.slots_tried[0] == 1


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(NONE, LINK), st.floats(0.2, 5.0)),
        min_size=1,
        max_size=6,
    )
)
def test_crossing_a_higher_level_is_never_faster(places: list[tuple[int, int, float]]) -> None:
    some, levels = observed([(slots, level) for slots, level, _ in places])
    some.step_s[:] *= [noise for _, _, noise in places]
    models, reach = fit_with_levels(some, levels, 1)
    crosses = np.arange(len(LEVELS) + 1)
    factor = reach_at(
        None if reach is None else reach[:, None],
        crosses,
        np.zeros((1, 1), np.int64),
        0,
        np.arange(len(crosses)),
    )
    step_s, _ = step_time(
        models, slots=np.array([[8]]), nodes=np.array([[4]]), local_batch=32.0, reach=factor
    )
    assert np.isfinite(step_s).all()
    assert (np.diff(step_s[0]) >= -1e-6 * step_s[0, 0]).all()


def test_what_cannot_be_true_is_ignored() -> None:
    some, levels = observed([*WITHIN, (8, RACK)])
    some.step_s[-1] = np.inf
    _, reach = fit_with_levels(some, levels, 1)
    assert reach is None
