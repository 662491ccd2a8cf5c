from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.ledger import MODULUS, Ledger

indices = st.lists(st.integers(0, 2**40), max_size=50)


def ledger_of(taken: list[int]) -> Ledger:
    return Ledger().add(np.array(taken, dtype=np.int64))


@given(taken=indices)
def test_the_three_numbers_are_exact_whatever_the_size_of_the_indices(taken: list[int]) -> None:
    expected = Ledger(len(taken), sum(taken) % MODULUS, sum(index * index for index in taken) % MODULUS)
    assert ledger_of(taken) == expected


@given(first=indices, second=indices)
def test_it_does_not_matter_in_how_many_steps_samples_were_taken(first: list[int], second: list[int]) -> None:
    assert ledger_of(first).add(np.array(second, dtype=np.int64)) == ledger_of(second + first)


@given(shares=st.lists(indices, max_size=5))
def test_the_ledgers_of_ranks_add_up_to_that_of_all_their_samples(shares: list[list[int]]) -> None:
    whole = ledger_of([index for share in shares for index in share])
    assert sum(map(ledger_of, shares), Ledger()) == whole
    assert sum(map(ledger_of, reversed(shares)), Ledger()) == whole


def test_sums_beyond_the_modulus_wrap() -> None:
    most = Ledger(1, MODULUS - 1, MODULUS - 1)
    assert most + most == Ledger(2, MODULUS - 2, MODULUS - 2)
    assert most + Ledger(1, 1, 1) == Ledger(2, 0, 0)


@given(samples=st.integers(1, 500))
def test_an_epoch_of_each_sample_once_is_exact(samples: int) -> None:
    assert ledger_of(list(range(samples))) == Ledger.of_epoch(samples)


@given(start=st.integers(0, 2**40), count=st.integers(0, 30), taken=indices)
def test_a_range_has_a_closed_form_and_can_be_taken_away(start: int, count: int, taken: list[int]) -> None:
    whole = Ledger.of_range(start, start + count)
    assert whole == ledger_of(list(range(start, start + count)))
    assert ledger_of(taken) + whole - whole == ledger_of(taken)


def test_an_epoch_of_a_trillion_samples_has_a_closed_form() -> None:
    n = 10**12
    assert Ledger.of_epoch(n).squares == sum_of_squares(n) % MODULUS


def sum_of_squares(n: int) -> int:
    return n**3 // 3 - n**2 // 2 + n // 6 + (n**3 % 3 * 2 - n**2 % 2 * 3 + n % 6) // 6


@given(samples=st.integers(2, 200), data=st.data())
def test_a_sample_left_out_repeated_or_exchanged_is_seen(samples: int, data: st.DataObject) -> None:
    some, other = data.draw(st.permutations(range(samples)))[:2]
    everything = list(range(samples))
    for wrong in (
        [index for index in everything if index != some],
        [*everything, some],
        [other if index == some else index for index in everything],
    ):
        assert ledger_of(wrong) != Ledger.of_epoch(samples)
