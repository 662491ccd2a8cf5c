"""Ranks exchange values without loss, and all conclude the same."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.collectives.gloo import Gloo
from headway.train.data.boundary import Agreement, Boundary, BoundaryRequest, Statement
from headway.train.data.ledger import MODULUS, Ledger
from headway.train.data.position import Position
from headway.train.data.reported_values import ReportedValues
from headway.train.membership.peers import Peers

reals = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -1.7e308])
statements = st.builds(
    Statement,
    request=st.sampled_from(BoundaryRequest),
    ordered=st.integers(0, 2**31 - 1),
    count=st.integers(0, 2**53),
    total=st.integers(0, MODULUS - 1),
    squares=st.integers(0, MODULUS - 1),
    compute_s=reals,
    square=reals,
    squared_mean=reals,
    noise_every=st.integers(0, 128),
    efficiency=reals,
    stepped=st.integers(0, 1),
)
together = st.lists(statements, min_size=1, max_size=9)


def bits(statement: Statement) -> list[int | bytes]:
    """Its values such that equal ones compare equal: NaN is not equal to itself, and -0.0 is to 0.0."""
    return [struct.pack("<d", one) if isinstance(one, float) else one for one in astuple(statement)]


@given(statements)
def test_a_statement_survives_the_way_to_the_last_bit(statement: Statement) -> None:
    numbers = list(statement.to_numbers())
    assert all(isinstance(number, int) and -(2**63) <= number < 2**63 for number in numbers)
    assert bits(Statement.from_numbers(numbers)) == bits(statement)


def test_all_statements_are_equally_long() -> None:
    """They are gathered into one tensor, whatever each rank has to say."""
    assert len({len(one.to_numbers()) for one in (Statement(), Statement(2, 3, 4, 5, 6, 0.7, 0.8, 0.9))}) == 1


@given(together)
def test_the_highest_wish_wins(said: list[Statement]) -> None:
    request = Agreement(tuple(said)).request
    assert request in {one.request for one in said}
    assert all(one.request <= request for one in said)


@given(st.lists(statements, min_size=1, max_size=5))
def test_the_efficiency_is_that_of_rank_0(said: list[Statement]) -> None:
    ours = Agreement(tuple(Statement.from_numbers(one.to_numbers()) for one in said)).efficiency
    assert struct.pack("<d", ours) == struct.pack("<d", said[0].efficiency)


@given(together, st.data())
def test_an_order_counts_once_everyone_has_seen_the_same(said: list[Statement], data: st.DataObject) -> None:
    generation = data.draw(st.integers(1, 2**31 - 1))
    same = [replace(one, ordered=generation) for one in said]
    assert Agreement(tuple(same)).ordered == generation
    other = data.draw(st.integers(0, 2**31 - 1).filter(lambda one: one != generation))
    place = data.draw(st.integers(0, len(said) - 1))
    mixed = [*same[:place], replace(same[place], ordered=other), *same[place + 1 :], same[0]]
    if len({one.ordered for one in mixed}) > 1:
        assert Agreement(tuple(mixed)).ordered == 0


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=20), min_size=1, max_size=6))
def test_the_ledgers_of_the_ranks_add_up_to_that_of_the_step(shares: list[list[int]]) -> None:
    said = []
    for share in shares:
        mine = Ledger().add(np.array(share, dtype=np.int64))
        said.append(Statement(count=mine.count, total=mine.total, squares=mine.squares))
    whole = np.array([index for share in shares for index in share], dtype=np.int64)
    assert Agreement(tuple(said)).ledger == Ledger().add(whole)


@given(together, st.permutations(range(9)))
def test_what_is_agreed_does_not_depend_on_who_says_it(said: list[Statement], places: Sequence[int]) -> None:
    one = Agreement(tuple(said))
    other = Agreement(tuple(said[place] for place in places if place < len(said)))
    assert (one.request, one.ordered, one.ledger) == (other.request, other.ordered, other.ledger)


def alone() -> Boundary:
    return Boundary(Peers(Gloo(), rank=0, world_size=1), ReportedValues(lambda _: None))


@given(statements)
def test_a_rank_alone_agrees_with_itself(statement: Statement) -> None:
    boundary = alone()
    boundary.begin(statement)
    (said,) = boundary.agree(statement.count).statements
    assert bits(said) == bits(statement)


def test_a_step_that_was_left_is_no_part_of_the_next() -> None:
    boundary = alone()
    boundary.begin(Statement(count=3, request=BoundaryRequest.STOP))
    boundary.begin(Statement(count=5))
    agreement = boundary.agree(5)
    assert (agreement.ledger.count, agreement.request) == (5, BoundaryRequest.CONTINUE)
    with pytest.raises(AssertionError, match="begin"):
        boundary.agree(5)


def test_statement_of_a_step_begun_again_is_that_of_its_first_beginning() -> None:
    boundary, here = alone(), Position(1, 8)
    boundary.begin(Statement(count=3), here)
    boundary.begin(Statement(count=3, request=BoundaryRequest.STOP), here)
    assert boundary.agree(3).request is BoundaryRequest.CONTINUE
    boundary.begin(Statement(count=3), here)
    boundary.begin(Statement(count=5), here.advance(3))
    assert boundary.agree(5).ledger.count == 5
    boundary.begin(Statement())
    boundary.begin(Statement(request=BoundaryRequest.STOP))
    assert boundary.agree(0).request is BoundaryRequest.STOP, "the ends of two epochs are different events"


@pytest.mark.parametrize(("taken", "expected"), [(3, 8), (8, 0), (0, 8), (9, 8)])
def test_ranks_in_different_steps_are_an_error(taken: int, expected: int) -> None:
    boundary = alone()
    boundary.begin(Statement(count=taken))
    with pytest.raises(RuntimeError, match=f"took {taken} samples.* rank has {expected};"):
        boundary.agree(expected)
