"""The gain of steps, the end of training, and the clock of the schedules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.goal import Gain, TrainingGoal, ends_by_progress, gain_of
from headway.train.gradients.clock import Clock

GOAL = TrainingGoal.of_epochs(2, 10, 4, by_progress=True)


@pytest.mark.parametrize(
    ("batch", "efficiency", "gain"),
    [
        (range(4), 1.0, Gain(4.0, 1.0)),
        (range(8, 10), 1.0, Gain(2.0, 1.0)),  # the short last step
        (range(8), 0.5, Gain(4.0, 1.0)),
        (range(8, 10), 0.5, Gain(1.0, 0.5)),
        (range(10), 0.75, Gain(7.5, 2.25)),
        (range(2, 6), 1.0, Gain(4.0, 1.0)),
        (range(2, 4), 1.0, Gain(2.0, 0.0)),  # the reference step of the first two samples
    ],
)
def test_gains_by_hand(batch: range, efficiency: float, gain: Gain) -> None:
    """In steps of 4 samples."""
    assert gain_of(batch, 4, efficiency) == gain


@given(st.integers(1, 200), st.integers(1, 50), st.lists(st.integers(1, 80), min_size=1, max_size=50))
def test_an_epoch_has_as_many_steps_in_any_batches(samples: int, reference: int, batches: list[int]) -> None:
    start, steps, made = 0, 0.0, 0.0
    for batch in (batches * samples)[:samples]:
        gain = gain_of(range(start, min(start + batch, samples)), reference, 1.0)
        start, steps, made = start + batch, steps + gain.steps, made + gain.samples
        if start >= samples:
            break
    assert made == samples
    assert steps == -(-samples // reference)


@pytest.mark.parametrize(
    ("by_progress", "epoch", "progress", "reached"),
    [
        (True, 1, 19.5, False),
        (True, 1, 20.0, True),
        (True, 1, 20.0 - 1e-9, True),  # rounding
        (True, 3, 19.5, False),
        (True, 0, 20.0, True),
        (False, 1, 20.0, False),
        (False, 2, 0.0, True),
    ],
)
def test_training_ends_by_progress_or_by_epochs(
    by_progress: bool, epoch: int, progress: float, reached: bool
) -> None:
    goal = TrainingGoal.of_epochs(2, 10, 4, by_progress=by_progress)
    assert goal.reached(epoch, progress, 0.0) is reached
    assert goal.total_samples == 20


@pytest.mark.parametrize(
    ("steps", "dataset_samples", "total_samples"),
    [(0, None, 0), (7, None, 28), (0, 10, 0), (2, 10, 8), (3, 10, 10), (4, 10, 14), (7, 10, 24), (2, 3, 6)],
)
def test_steps_end_after_their_number_whatever_the_epochs(
    steps: int, dataset_samples: int | None, total_samples: int
) -> None:
    """In steps of 4 samples, of which the last of an epoch takes the rest."""
    goal = TrainingGoal.of_steps(steps, dataset_samples, 4, by_progress=False)
    assert (goal.total_samples, goal.total_steps, goal.counts_steps) == (total_samples, steps, True)
    assert goal.reached(0, 0.0, float(steps))
    assert steps == 0 or goal.reached(0, 0.0, steps * (1.0 - 1e-10))
    assert steps == 0 or not goal.reached(9, 99.0, steps - 0.25)


@pytest.mark.parametrize(
    ("until", "adaptive", "by_progress"),
    [
        (None, True, True),
        (None, False, False),
        ("progress", True, True),
        ("progress", False, False),
        ("epochs", True, False),
        ("epochs", False, False),
    ],
)
def test_only_a_job_whose_batch_may_change_ends_by_progress(
    until: Any, adaptive: bool, by_progress: bool
) -> None:
    assert ends_by_progress(until, adaptive=adaptive) is by_progress


def test_another_end_is_refused() -> None:
    with pytest.raises(ValueError, match="until is 'samples'"):
        ends_by_progress("samples", adaptive=True)  # type: ignore[arg-type]


def test_schedules_end_with_training_although_its_last_step_goes_beyond() -> None:
    assert GOAL.clock(4, 5.5, 30, 19.0, within_step=True) == Clock(4, 5.5, 30, 19.0, within_step=True)
    assert GOAL.clock(5, 6.5, 40, 21.0) == Clock(5, 6.0, 40, 20.0)
    as_read = TrainingGoal.of_epochs(2, 10, 4, by_progress=False)
    assert as_read.clock(5, 6.5, 40, 21.0) == Clock(5, 6.5, 40, 21.0)
