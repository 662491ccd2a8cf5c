"""Every cycle of jobs that wait for one another ends, and no job gives way without need."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.placement.deadlock import deadlocked

graphs = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdefgh")), max_size=6).map(
    lambda waits: {job: others - {job} for job, others in waits.items() if others - {job}}
)


@pytest.mark.parametrize(
    ("waits", "order", "giving_way"),
    [
        ({}, "", ""),
        ({"a": "b"}, "a", ""),  # b waits for nobody
        ({"a": "b", "b": "c"}, "ab", ""),
        ({"a": "b", "b": "a"}, "ab", "b"),
        ({"a": "b", "b": "a"}, "ba", "a"),  # the last of the order
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, "cabd", "b"),  # d only waits for a cycle
        ({"a": "b", "b": "x"}, "ab", ""),
        ({"a": "b", "b": "a", "c": "d", "d": "c"}, "abcd", "bd"),  # two cycles
        ({"a": "bc", "b": "a", "c": "a"}, "abc", "bc"),  # a waits for both
        ({"a": "bc", "b": "a", "c": "a"}, "bca", "a"),  # one job ends both
        ({"a": "b", "b": "ca", "c": "b"}, "acb", "b"),
        ({"a": "b", "b": "c", "c": "b", "d": "a"}, "abcd", "c"),  # a chain into a cycle
        ({"a": "b", "b": "ac", "c": "d"}, "abcd", "b"),  # a cycle with a way out of it
        ({"a": "a"}, "a", "a"),  # a job that waits for itself
    ],
)
def test_the_last_job_of_each_cycle_gives_way(waits: dict[str, str], order: str, giving_way: str) -> None:
    assert deadlocked({job: set(others) for job, others in waits.items()}, list(order)) == set(giving_way)


def stuck(waits: Mapping[str, set[str]], without: set[str]) -> set[str]:
    """The jobs that still wait once all that can has gone ahead."""
    left = set(waits) - without
    while able := {job for job in left if not waits[job] & left}:
        left -= able
    return left


@given(graphs)
@settings(max_examples=50)
def test_who_gives_way_ends_all_cycles_and_nobody_else_does(waits: Mapping[str, set[str]]) -> None:
    giving_way = deadlocked(waits, sorted(waits))
    assert not stuck(waits, giving_way)
    assert giving_way <= stuck(waits, set())
    assert bool(giving_way) == bool(stuck(waits, set()))


@given(graphs)
@settings(max_examples=25)
def test_each_job_that_gives_way_is_needed_for_it(waits: Mapping[str, set[str]]) -> None:
    """Without the one that was chosen last, a cycle is left: the others alone do not suffice."""
    order = sorted(waits)
    giving_way = deadlocked(waits, order)
    if giving_way:
        earliest = min(giving_way, key=order.index)
        assert stuck(waits, giving_way - {earliest})


@given(graphs, st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_the_order_of_the_input_does_not_matter(waits: dict[str, set[str]], rng: random.Random) -> None:
    order = sorted(waits)
    shuffled = list(waits.items())
    rng.shuffle(shuffled)
    assert deadlocked(dict(shuffled), order) == deadlocked(waits, order)


def test_a_long_chain_needs_no_deep_recursion() -> None:
    jobs = [f"j{index:05}" for index in range(5000)]
    waits = {job: {after} for job, after in zip(jobs, [*jobs[1:], jobs[0]], strict=True)}
    assert deadlocked(waits, jobs) == {jobs[-1]}
