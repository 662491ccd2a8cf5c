"""The rank whose state all take after a membership change."""

from __future__ import annotations

from typing import Any, cast

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.changes import NO_REASON, ChangeReason
from headway.contract.orders import Order
from headway.train.checkpoint.replica import Place, Replica
from headway.train.collectives.devices import TorchDevice
from headway.train.data.batching import Batching, Bounds
from headway.train.data.ledger import Ledger
from headway.train.data.position import Position
from headway.train.membership.meeting import PeersLost
from headway.train.state.sync import StateOffer, StateSync, choose_source

standings = st.builds(
    StateOffer,
    has_state=st.booleans(),
    epoch=st.integers(0, 3),
    samples=st.integers(0, 3),
    signature=st.integers(0, 2**56 - 1),
)


@given(st.lists(standings, min_size=1, max_size=9))
def test_the_source_is_the_first_of_the_most_advanced_that_hold_the_state(said: list[StateOffer]) -> None:
    source = choose_source(said)
    holders = [rank for rank, one in enumerate(said) if one.has_state]
    if source is None:
        assert not holders
        return
    best = max((said[rank].epoch, said[rank].samples) for rank in holders)
    assert source == next(rank for rank in holders if (said[rank].epoch, said[rank].samples) == best)


@given(st.lists(standings, min_size=1, max_size=9), standings)
def test_a_newcomer_at_the_end_changes_nothing(said: list[StateOffer], newcomer: StateOffer) -> None:
    newcomer = StateOffer(False, newcomer.epoch, newcomer.samples, newcomer.signature)
    assert choose_source([*said, newcomer]) == choose_source(said)


def test_an_epoch_counts_more_than_samples() -> None:
    """The samples are those of the epoch, so they begin anew with it."""
    assert choose_source([StateOffer(True, 1, 48, 7), StateOffer(True, 2, 0, 7)]) == 1


@given(standings)
def test_what_is_said_can_be_understood(standing: StateOffer) -> None:
    holds, *rest = map(int, standing.numbers)
    assert StateOffer(bool(holds), *rest) == standing
    assert all(0 <= int(number) < 2**63 for number in standing.numbers)


@given(standings, standings)
def test_the_same_place_is_one_that_both_hold(one: StateOffer, other: StateOffer) -> None:
    if one.matches(other):
        assert (one.has_state, one.epoch, one.samples) == (other.has_state, other.epoch, other.samples)
    assert one.matches(other) == other.matches(one)
    newcomer, holder = StateOffer(False, 1, 8, 7), StateOffer(True, 1, 8, 7)
    assert not newcomer.matches(holder)


class Source:
    """Rank 0 of two, which holds the state, and on which everything that it says is noted."""

    rank, world_size, is_main = 0, 2, True
    device = TorchDevice()

    def __init__(self) -> None:
        self.said: list[Any] = []

    def note(self, said: Any) -> Any:
        self.said.append(said)
        return said

    def gather(self, *numbers: int) -> Any:
        newcomer = [0, 0, 0, numbers[-1]]
        return self.note([list(numbers), newcomer])

    def group_of(self, _ranks: Any) -> object:
        return self

    def bytes_from(self, _source: int, data: bytes, _group: Any = None) -> Any:
        return self.note(data)

    def tensors_from(self, _source: int, tensors: list[torch.Tensor], _group: Any) -> None:
        self.note([one.clone() for one in tensors])

    def device_tensors_from(self, *_: Any) -> None:
        """There is no device."""


class Newcomer(Source):
    """Rank 1, which hears the first `messages` of what the source said, and then that it is lost."""

    rank, is_main = 1, False

    def __init__(self, source: Source, messages: int) -> None:
        super().__init__()
        self.to_hear = source.said[:messages]

    def note(self, _said: Any) -> Any:
        if not self.to_hear:
            raise PeersLost
        return self.to_hear.pop(0)

    def tensors_from(self, _source: int, tensors: list[torch.Tensor], _group: Any) -> None:
        for one, heard in zip(tensors, self.note(None), strict=True):
            one.copy_(heard)


class Names:
    """A team of which only the names of its members are asked."""

    def __init__(self) -> None:
        self.members = {"2.0": 0, "2.1": 1}
        self.members_before: frozenset[str] | None = None
        self.why = NO_REASON

    def know(self, members: dict[str, int], before: frozenset[str] | None, why: ChangeReason) -> None:
        self.members, self.members_before, self.why = members, before, why


def level(peers: Source, place: Place, *, has_state: bool) -> tuple[StateSync, Place | None]:
    """The sync after all, and the place, or None when a peer was lost."""
    model = torch.nn.Linear(4, 2)
    replica = Replica([model, torch.optim.SGD(model.parameters(), lr=0.1)])
    nobody = cast("Any", None)  # is asked here
    sync = StateSync(replica, cast("Any", Names()), nobody, nobody)
    sync.has_state = has_state
    order = Order(generation=2, world_size=2, store="", members={"1.0": 0, "2.1": 1})
    batching = Batching(Bounds(global_batch=8), rank=peers.rank, world_size=2)
    try:
        return sync, sync.synchronise(cast("Any", peers), order, place, batching)
    except PeersLost:
        return sync, None


def test_a_newcomer_holds_the_state_once_it_knows_the_place_as_well() -> None:
    """Else, when its source is lost meanwhile, it would train on from the place of a newcomer."""
    there = Place(Position(3, 16), Ledger(), dataset_samples=100, seed=0)
    source = Source()
    assert level(source, there, has_state=True)[1] == there
    begin = Place(dataset_samples=100, seed=0)
    for messages in range(len(source.said)):
        sync, place = level(Newcomer(source, messages), begin, has_state=False)
        assert (place, sync.has_state) == (None, False), f"lost after {messages} messages"
    sync, place = level(Newcomer(source, len(source.said)), begin, has_state=False)
    assert (place, sync.has_state) == (there, True)
