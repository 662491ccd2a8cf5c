"""Lookups of nodes by free slots agree with a search through all nodes, whatever was taken and reserved."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from service.domain.allocation.placement.bins import Bins

LARGEST = 8


@dataclass
class Listed:
    """The same nodes as plain lists, searched from the first to the last."""

    room: list[int]
    crowded: list[bool] = field(init=False)
    reserved: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.crowded = [False] * len(self.room)
        self.reserved = [0] * len(self.room)

    def classes(self, *, spans: bool) -> list[list[int]]:
        """Nodes in the order of preference of a job that spans several nodes, or of one that does not."""
        nodes = range(len(self.room))
        free = [node for node in nodes if not self.reserved[node]]
        quiet = [node for node in free if not self.crowded[node]]
        crowded = [node for node in free if self.crowded[node]]
        reserved = [node for node in nodes if self.reserved[node]]
        return [quiet, reserved, crowded] if spans else [crowded + quiet, reserved]

    def sizes(self, slots: int, *, spans: bool) -> list[int]:
        """Free slots of the fitting nodes of the first class that has some."""
        for nodes in self.classes(spans=spans):
            fitting = [self.room[node] for node in nodes if self.room[node] >= slots]
            if fitting:
                return fitting
        return []

    def pick(self, room: int, *, spans: bool) -> int:
        """The node with exactly that much room that comes first in its class."""
        return next(node for nodes in self.classes(spans=spans) for node in nodes if self.room[node] == room)


class BinsMachine(RuleBasedStateMachine):
    """Random takes, returns and reservations, on both at once."""

    @initialize(room=st.lists(st.integers(0, LARGEST), min_size=1, max_size=6))
    def start(self, room: list[int]) -> None:
        self.bins, self.listed = Bins(room), Listed(list(room))

    @rule(data=st.data(), spans=st.booleans())
    def take(self, data: st.DataObject, spans: bool) -> None:
        node = data.draw(st.integers(0, len(self.listed.room) - 1))
        slots = data.draw(st.integers(self.listed.room[node] - LARGEST, self.listed.room[node]))
        self.bins.take(node, slots, spans=spans)
        self.listed.room[node] -= slots
        self.listed.crowded[node] |= spans

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        nodes = data.draw(st.sets(st.integers(0, len(self.listed.room) - 1), max_size=3))
        self.bins.reserve(nodes, +1)
        for node in nodes:
            self.listed.reserved[node] += 1

    @rule()
    def lift(self) -> None:
        nodes = [node for node, count in enumerate(self.listed.reserved) if count]
        self.bins.reserve(nodes, -1)
        for node in nodes:
            self.listed.reserved[node] -= 1

    @rule(slots=st.integers(0, LARGEST + 1), spans=st.booleans())
    def look(self, slots: int, spans: bool) -> None:
        fitting = self.listed.sizes(slots, spans=spans)
        tightest, roomiest = self.bins.tightest(slots, spans=spans), self.bins.roomiest(slots, spans=spans)
        if not fitting:
            assert tightest is None
            assert roomiest is None
            return
        assert tightest is not None
        assert roomiest is not None
        assert self.listed.room[tightest] == min(fitting)
        assert self.listed.room[roomiest] == max(fitting)
        assert tightest == self.listed.pick(min(fitting), spans=spans)
        assert roomiest == self.listed.pick(max(fitting), spans=spans)

    @invariant()
    def same_room(self) -> None:
        if hasattr(self, "bins"):
            assert self.bins.room == self.listed.room


BinsMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestBins = BinsMachine.TestCase


@pytest.mark.parametrize(
    ("slots", "tightest", "roomiest"),
    [(0, 3, 1), (1, 2, 1), (2, 2, 1), (3, 0, 1), (4, 1, 1), (5, 1, 1), (6, None, None)],
)
def test_best_fit_and_worst_fit(slots: int, tightest: int | None, roomiest: int | None) -> None:
    bins = Bins([3, 5, 2, 0])
    for spans in (False, True):
        assert bins.tightest(slots, spans=spans) == tightest
        assert bins.roomiest(slots, spans=spans) == roomiest


def test_equal_nodes_give_the_first() -> None:
    bins = Bins([1, 4, 4, 4])
    assert (bins.tightest(2, spans=False), bins.roomiest(2, spans=False)) == (1, 1)
    bins.take(1, 4, spans=False)
    assert (bins.tightest(2, spans=False), bins.roomiest(2, spans=False)) == (2, 2)
    bins.take(1, -4, spans=False)
    assert bins.tightest(2, spans=False) == 1


def test_jobs_of_several_nodes_avoid_one_another() -> None:
    bins = Bins([4, 4])
    bins.take(0, 2, spans=True)
    assert bins.tightest(2, spans=True) == 1, "although the other one is tighter"
    assert bins.tightest(2, spans=False) == 0, "small jobs fill the node that is crowded already"
    bins.take(1, 3, spans=False)
    assert bins.tightest(2, spans=True) == 0, "crowded nodes come last, but they count"


def test_small_job_takes_the_crowded_one_of_equal_nodes() -> None:
    bins = Bins([2, 4])
    bins.take(1, 2, spans=True)
    assert bins.tightest(2, spans=False) == 1


def test_a_node_stays_crowded_when_the_slots_are_returned() -> None:
    bins = Bins([4, 4])
    bins.take(0, 2, spans=True)
    bins.take(0, -2, spans=False)
    assert bins.room == [4, 4]
    assert bins.tightest(4, spans=True) == 1


def test_reserved_nodes_are_taken_last() -> None:
    bins = Bins([2, 4])
    bins.reserve([0], +1)
    assert bins.tightest(2, spans=False) == 1
    bins.take(1, 3, spans=False)
    assert bins.tightest(2, spans=False) == 0
    assert bins.tightest(1, spans=False) == 1


def test_a_node_is_reserved_until_every_job_has_lifted_it() -> None:
    bins = Bins([2, 4])
    bins.reserve([0, 1], +1)
    bins.reserve([0], +1)
    bins.reserve([0, 1], -1)
    assert bins.tightest(2, spans=False) == 1
    bins.reserve([0], -1)
    assert bins.tightest(2, spans=False) == 0


def test_a_job_of_several_nodes_prefers_reserved_nodes_to_crowded_ones() -> None:
    bins = Bins([4, 4])
    bins.take(0, 0, spans=True)
    bins.reserve([1], +1)
    assert bins.tightest(4, spans=True) == 1
    assert bins.tightest(4, spans=False) == 0


def test_without_nodes_there_is_none() -> None:
    assert Bins([]).tightest(0, spans=False) is None
    assert Bins([]).roomiest(0, spans=True) is None


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 100))
@settings(max_examples=40)
def test_the_result_fits_and_nothing_fits_better(room: list[int], slots: int) -> None:
    bins = Bins(room)
    fitting = [one for one in room if one >= slots]
    tightest, roomiest = bins.tightest(slots, spans=False), bins.roomiest(slots, spans=False)
    assert (None if tightest is None else room[tightest]) == min(fitting, default=None)
    assert (None if roomiest is None else room[roomiest]) == max(fitting, default=None)
