"""Measurement of a device's memory: in which steps."""

from __future__ import annotations

import pytest

from headway.train.gradients.device import MemoryTurns


@pytest.mark.parametrize("step_s", [0.003, 0.013, 0.054, 2.0])
def test_measurements_of_memory_take_a_thousandth_of_the_time(step_s: float) -> None:
    turns, costs_s, measured, now_s = MemoryTurns(), 0.0005, 0, 100.0
    for _ in range(10_000):
        if turns.due(now_s, samples=8):
            now_s += costs_s
            measured += 1
            turns.measured(now_s, costs_s)
        now_s += step_s
    assert measured > 1
    assert measured * costs_s <= 0.0011 * 10_000 * step_s


def test_a_new_size_of_micro_batches_is_measured_at_once() -> None:
    turns = MemoryTurns()
    assert turns.due(100.0, samples=8)
    turns.measured(100.0, 0.001)
    assert not turns.due(100.01, samples=8)
    assert turns.due(100.02, samples=4)
