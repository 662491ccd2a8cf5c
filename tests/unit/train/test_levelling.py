"""Whose state all ranks take when members have changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.train.levelling import Standing, choose_source

standings = st.builds(
    Standing,
    holds=st.booleans(),
    epoch=st.integers(0, 3),
    samples=st.integers(0, 3),
    signature=st.integers(0, 2**56 - 1),
)


@given(st.lists(standings, min_size=1, max_size=9))
def test_the_source_is_the_first_of_the_most_advanced_that_hold_the_state(said: list[Standing]) -> None:
    source = choose_source(said)
    holders = [rank for rank, one in enumerate(said) if one.holds]
    if source is None:
        assert not holders
        return
    best = max((said[rank].epoch, said[rank].samples) for rank in holders)
    assert source == next(rank for rank in holders if (said[rank].epoch, said[rank].samples) == best)


@given(st.lists(standings, min_size=1, max_size=9), standings)
def test_a_newcomer_at_the_end_changes_nothing(said: list[Standing], newcomer: Standing) -> None:
    newcomer = Standing(False, newcomer.epoch, newcomer.samples, newcomer.signature)
    assert choose_source([*said, newcomer]) == choose_source(said)


def test_an_epoch_counts_more_than_samples() -> None:
    """The samples are those of the epoch, so they begin anew with it."""
    assert choose_source([Standing(True, 1, 48, 7), Standing(True, 2, 0, 7)]) == 1


@given(standings)
def test_what_is_said_can_be_understood(standing: Standing) -> None:
    holds, *rest = map(int, standing.numbers)
    assert Standing(bool(holds), *rest) == standing
    assert all(0 <= int(number) < 2**63 for number in standing.numbers)


@given(standings, standings)
def test_the_same_place_is_one_that_both_hold(one: Standing, other: Standing) -> None:
    if one.same_place(other):
        assert (one.holds, one.epoch, one.samples) == (other.holds, other.epoch, other.samples)
    assert one.same_place(other) == other.same_place(one)
    newcomer, holder = Standing(False, 1, 8, 7), Standing(True, 1, 8, 7)
    assert not newcomer.same_place(holder)
