"""Gradients that a script carries over batches: counted, and waited for within bounds."""

from __future__ import annotations

from headway.train.gradients.carried import CarriedGradients, Wait


def carry(batches: int, carried: CarriedGradients) -> CarriedGradients:
    for _ in range(batches):
        carried.batch_ended(stepped=False, holds_gradients=True)
    return carried


def test_script_that_steps_in_every_batch_lets_nothing_wait() -> None:
    carried = CarriedGradients()
    carried.batch_ended(stepped=True, holds_gradients=False)
    assert carried.wait(0.0, stops=False) is Wait.NOTHING_CARRIED


def test_change_within_an_accumulation_waits_until_the_step() -> None:
    carried = carry(3, CarriedGradients())
    assert carried.wait(0.0, stops=False) is Wait.FOR_STEP
    carried.batch_ended(stepped=True, holds_gradients=True)
    assert carried.wait(1.0, stops=False) is Wait.NOTHING_CARRIED


def test_gradients_that_the_script_zeroes_are_not_waited_for() -> None:
    carried = carry(1, CarriedGradients())
    carried.zeroed()
    assert carried.wait(0.0, stops=False) is Wait.NOTHING_CARRIED


def test_wait_ends_after_60_s_and_for_a_stop_after_10() -> None:
    for stops, limit_s in ((False, 60.0), (True, 10.0)):
        carried = carry(1, CarriedGradients())
        assert carried.wait(100.0, stops=stops) is Wait.FOR_STEP
        assert carried.wait(100.0 + limit_s - 0.1, stops=stops) is Wait.FOR_STEP
        assert carried.wait(100.0 + limit_s, stops=stops) is Wait.GIVEN_UP


def test_wait_ends_after_twice_the_batches_of_the_longest_accumulation() -> None:
    carried = carry(3, CarriedGradients())
    carried.batch_ended(stepped=True, holds_gradients=True)
    assert carry(6, carried).wait(0.0, stops=False) is Wait.FOR_STEP
    assert carry(1, carried).wait(0.0, stops=False) is Wait.GIVEN_UP
    assert carried.dropped() == 7
    assert carried.dropped() == 0
