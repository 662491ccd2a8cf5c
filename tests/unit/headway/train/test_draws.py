"""The sequence of random indices depends on the seed alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.train.draws import draw


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 40), st.integers(0, 40))
def test_parts_of_the_sequence_are_those_of_the_whole(
    population: int, start: int, first: int, rest: int
) -> None:
    whole = draw(population, range(start, start + first + rest), seed=3)
    parts = [
        draw(population, range(start, start + first), seed=3),
        draw(population, range(start + first, start + first + rest), seed=3),
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert all(0 <= index < population for index in whole)


def test_another_seed_draws_others_and_every_index_occurs() -> None:
    one, other = (draw(10, range(1000), seed=seed) for seed in (1, 2))
    assert one.tolist() != other.tolist()
    assert min(np.bincount(one, minlength=10)) > 60  # 100 each on average
