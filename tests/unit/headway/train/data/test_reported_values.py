"""Values of `run.report` become means over the ranks that report them, in the order of their reports."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.train.data.reported_values import MOST_WAITING, SLOTS, ReportedValues
from headway.train.trackers.sender import TrackedReport

reports = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats(), max_size=5), max_size=8)


def report(step: int = 0, **values: float) -> TrackedReport:
    numbers = {
        "step": step,
        "first_step": 0,
        "epoch": 0,
        "samples": 8 * step,
        "generation": 1,
        "world_size": 2,
    }
    return TrackedReport(**numbers, at_s=0.0, values=values)


class Rank:
    def __init__(self) -> None:
        self.sent: list[Mapping[str, float]] = []
        self.values = ReportedValues(lambda one: self.sent.append(one.values))
        self.values.shared = True

    def report(self, step: int = 0, **values: float) -> None:
        self.values.add(report(step, **values), alone=False)


def exchange(*ranks: Rank) -> None:
    everyone = [one.values.numbers() for one in ranks]
    assert {len(numbers) for numbers in everyone} == {2 * SLOTS}
    for number, one in enumerate(ranks):
        one.values.deliver(everyone, number)


def test_report_of_two_ranks_is_the_mean_once_they_have_exchanged() -> None:
    first, second = Rank(), Rank()
    first.report(loss=1.0, accuracy=0.5)
    second.report(accuracy=1.0, loss=4.0)
    assert first.sent == []
    exchange(first, second)
    assert first.sent == [{"loss": 2.5, "accuracy": 0.75}]


def test_report_of_one_rank_or_of_another_step_is_its_own() -> None:
    first, second = Rank(), Rank()
    first.report(3, loss=1.0)
    second.report(2, loss=9.0)
    second.report(3, rate=9.0)
    exchange(first, second)
    assert first.sent == [{"loss": 1.0}]


def test_reports_of_one_name_in_one_step_are_averaged_in_their_order() -> None:
    first, second = Rank(), Rank()
    for value in (1.0, 2.0):
        first.report(loss=value)
        second.report(loss=10 * value)
    exchange(first, second)
    assert first.sent == [{"loss": 5.5}, {"loss": 11.0}]


def test_reports_beyond_the_slots_wait_and_a_long_one_has_own_values_behind_them() -> None:
    first, second = Rank(), Rank()
    many = {f"m{number}": float(number) for number in range(SLOTS + 2)}
    for one, factor in ((first, 1.0), (second, 3.0)):
        one.report(loss=factor)
        one.report(**{name: factor * value for name, value in many.items()})
    exchange(first, second)
    assert first.sent == [{"loss": 2.0}]
    exchange(first, second)
    assert first.sent[1] == {
        name: value * (2.0 if number < SLOTS else 1.0) for number, (name, value) in enumerate(many.items())
    }


def test_backlog_of_reports_is_bounded_and_in_order() -> None:
    rank = Rank()
    for step in range(MOST_WAITING + 5):
        rank.report(step, loss=float(step))
    assert [one["loss"] for one in rank.sent] == [0.0, 1.0, 2.0, 3.0, 4.0]
    rank.values.flush()
    assert [one["loss"] for one in rank.sent] == [float(step) for step in range(MOST_WAITING + 5)]


@pytest.mark.parametrize(("shared", "alone"), [(False, False), (True, True)])
def test_report_outside_the_loop_or_alone_is_sent_at_once(shared: bool, alone: bool) -> None:
    rank = Rank()
    rank.values.shared = shared
    rank.values.add(report(loss=1.0), alone=alone)
    assert rank.sent == [{"loss": 1.0}]


@given(reports, reports, st.integers(1, 5))
def test_every_report_of_rank_0_is_sent_once(
    ours: list[dict[str, float]], theirs: list[dict[str, float]], every: int
) -> None:
    first, second = Rank(), Rank()
    for step in range(8):
        for rank, its in ((first, ours), (second, theirs)):
            if step < len(its):
                rank.report(step, **its[step])
        if step % every == 0:
            exchange(first, second)
    for _ in range(8):
        exchange(first, second)
    sent = [set(one) for one in first.sent if one]
    assert sent == [set(one) for one in ours if one], "without a flush"
