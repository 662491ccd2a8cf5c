"""Trials with early ends in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.early_stops import EPOCH_S, EPOCHS, PlayedTrials, losses_of, makespan_s
from service.domain.policies.registry import DEFAULT, policy


def test_losses_repeat_for_a_seed_and_have_a_column_for_each_rung() -> None:
    losses = losses_of(5, np.random.default_rng(1))
    assert losses.shape == (5, 5)  # at 1, 3, 9, 27 and 81 epochs
    assert (losses == losses_of(5, np.random.default_rng(1))).all()


def test_trials_end_at_the_rung_where_enough_of_them_are_better() -> None:
    played = PlayedTrials(np.array([[1.0, 1.0], [2.0, 0.1], [3.0, 3.0]]))
    rows = np.arange(3)
    assert not played.early_ends(rows, np.array([0.5, 0.5, 0.5]) * EPOCH_S).any()
    assert not played.early_ends(rows, np.array([1.0, 1.0, 0.5]) * EPOCH_S).any()
    assert played.early_ends(rows, np.array([1.0, 1.0, 1.0]) * EPOCH_S).tolist() == [False, True, True]
    assert not played.early_ends(rows[:1], np.array([3.0]) * EPOCH_S).any()
    assert played.final_losses == [1.0]


def test_elastic_trials_are_faster_than_those_on_one_slot_and_as_good() -> None:
    losses = losses_of(8, np.random.default_rng(1))
    elastic_s, loss = makespan_s(policy(DEFAULT), losses, None)
    fixed_s, fixed_loss = makespan_s(policy(DEFAULT), losses, 1)
    assert fixed_s >= EPOCHS * EPOCH_S
    assert elastic_s < 0.5 * fixed_s
    assert loss == pytest.approx(fixed_loss, rel=0.1)
