"""Configurations that a search visits, for jobs that adapt their batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.forecasts import SearchPhase
from service.domain.perf.searches.search import VISIT_STEPS, SearchGoal, search_step
from service.domain.perf.searches.visits import Mode, visits_of
from tests.unit.service.domain.perf.searches import known_of, place_of, sizes


@pytest.mark.parametrize(
    ("mode", "slots", "batches", "expected"),
    [
        ("full", [1, 1, 2, 2], [64, 128, 64, 128], [0, 1, 2, 3]),
        # Two sizes and three batches: the corners.
        ("partial", [1, 1, 1, 2, 2, 2], [64, 128, 256] * 2, [0, 2, 3, 5]),
        # Three sizes: the corners, and the smallest of several slots with the smallest batch.
        ("partial", [1, 1, 2, 2, 8, 8], [64, 256] * 3, [0, 1, 2, 4, 5]),
        ("partial", [2, 2, 4, 4, 8, 8], [64, 256] * 3, [0, 1, 4, 5]),
        ("partial", [4, 4, 4], [64, 128, 256], [0, 2]),
        ("none", [1, 1, 2, 2], [64, 128] * 2, []),
    ],
)
def test_corners_are_visited(mode: Mode, slots: list[int], batches: list[int], expected: list[int]) -> None:
    configurations = sizes(*slots)
    found = visits_of(mode, configurations, np.ones(len(slots), bool), np.array(batches))
    assert np.flatnonzero(found).tolist() == expected


@given(
    slots=st.lists(st.integers(1, 8), min_size=1, max_size=8, unique=True),
    batches=st.lists(st.integers(1, 512), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_partial_is_a_small_part_of_full_with_all_extremes(
    slots: list[int], batches: list[int], seed: int
) -> None:
    pairs = [(size, batch) for size in slots for batch in batches]
    order = np.random.default_rng(seed).permutation(len(pairs))
    size, batch = np.array(pairs)[order].T
    every = np.ones(len(pairs), bool)
    full, partial = (visits_of(mode, sizes(*size.tolist()), every, batch) for mode in ("full", "partial"))
    assert full.all()
    assert partial.sum() <= 5
    seen = {(int(size[at]), int(batch[at])) for at in np.flatnonzero(partial)}
    assert {(one, two) for one in (min(slots), max(slots)) for two in (min(batches), max(batches))} <= seen


AIM = SearchGoal(mode="full", objective="time")


def test_batches_of_a_size_come_before_the_next_size() -> None:
    batch = np.array([128, 64, 128, 64])
    known = known_of([100.0] * 4, [0, 30, 0, 0], batch=batch)
    assert search_step(AIM, sizes(1, 1, 2, 2), known, place_of(1)).target == 0
    known = known_of([100.0] * 4, [30, 30, 0, 0], batch=batch)
    assert search_step(AIM, sizes(1, 1, 2, 2), known, place_of(0)).target == 3


def test_the_goodput_of_a_batch_decides_not_its_samples() -> None:
    """A batch of 512 makes twice the samples, and a third of the progress of each."""
    known = known_of([100.0, 66.0], [50, 50], batch=np.array([64, 512]))
    step = search_step(AIM, sizes(1, 1), known, place_of(1))
    assert (step.target, step.phase) == (0, SearchPhase.SETTLED)


def test_what_the_class_has_shown_is_not_visited() -> None:
    shown = np.array([True, True, False, True])
    known = known_of([100, 190, 300, 320], [VISIT_STEPS, 0, 0, 0], shown=shown)
    step = search_step(AIM, sizes(1, 2, 4, 8), known, place_of(0))
    assert (step.target, step.visited, step.visits, step.shown) == (2, 1, 4, 2)
    assert step.reason == "visit 2 of 4, without 2 that its class has shown"
    known = known_of([100, 190, 300, 320], [VISIT_STEPS, 0, VISIT_STEPS, 0], shown=shown)
    step = search_step(AIM, sizes(1, 2, 4, 8), known, place_of(2))
    assert (step.target, step.phase, step.skipped) == (3, SearchPhase.SETTLED, 0)


def test_a_first_visit_of_a_slow_configuration_is_foreseen() -> None:
    """20 steps of 64 samples at 2 per second take 640 s, far more than a tenth of a run of 1,000 s."""
    known = known_of([100.0, 2.0], [50, 0])
    step = search_step(AIM, sizes(1, 2), known, place_of(0, left=1e5 - 1e4, done=1e4))
    assert (step.phase, step.skipped) == (SearchPhase.SETTLED, 1)
