"""Bring all members of a generation to one state: that of the most advanced, or of the newest checkpoint."""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from headway.contract.orders import Order
from headway.contract.runtime import EXIT_RETRY, Restored
from headway.train.batching import Batching
from headway.train.control import Mailbox
from headway.train.handover import hand_over, signature
from headway.train.output import complain, ending, flush
from headway.train.peers import Peers, PeersLost, Superseded
from headway.train.replica import Place, Replica
from headway.train.saving import Saver
from headway.train.team import Team

HANDED_OVER = "handed over"
"""The mark that leavers set when none of them stays: the state is in storage. Says since when training stands still."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a rank brings into a new generation: whether it holds the state of the training, and of which place."""

    holds: bool
    epoch: int
    samples: int
    signature: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """For `Peers.gather`."""
        return self.holds, self.epoch, self.samples, self.signature

    def same_place(self, other: Standing) -> bool:
        """Whether both hold the state, and the same one."""
        return (self.holds, self.epoch, self.samples) == (other.holds, other.epoch, other.samples)


def choose_source(standings: Sequence[Standing]) -> int | None:
    """The rank whose state all take: the most advanced, the first of equal ones; None when nobody holds it.

    After a loss survivors may differ by one step, since one has got the last gradient whole and another not.
    """
    holders = [rank for rank, one in enumerate(standings) if one.holds]
    return max(
        holders, key=lambda rank: (standings[rank].epoch, standings[rank].samples, -rank), default=None
    )


class Leveller:
    """What this rank holds of the training's state, and how it comes to the same as its peers."""

    def __init__(self, replica: Replica, team: Team, saver: Saver, mailbox: Mailbox) -> None:
        self.holds = False
        """Whether this rank has the state of its place."""
        self.sync_bytes = 0
        """What the last levelling sent or received."""
        self._still_since_s: float | None = None
        self._replica = replica
        self._team = team
        self._saver = saver
        self._mailbox = mailbox
        self._signature = signature(replica.objects)

    def start(self, peers: Peers) -> Place:
        """The first members begin where the newest checkpoint is. Ends the process when storage is silent.

        Raises:
            ValueError: the ranks have made different models.
            PeersLost: a peer is gone.
        """
        if len({signature for (signature,) in peers.gather(self._signature)}) > 1:
            raise ValueError(
                "the ranks have made different models (other parameters, shapes or types), so they cannot be "
                "kept equal; make the same one on every rank"
            )
        place = self._load(peers, Place())
        self.holds = True
        return place

    def level(self, peers: Peers, order: Order, place: Place, batching: Batching) -> Place:
        """The place of all members, of which this rank holds the state and the plan then.

        Ends the process of a newcomer that has made another model.

        Raises:
            PeersLost, Superseded: there is a new change of members to make.
        """
        position = place.position
        mine = Standing(self.holds, position.epoch, position.samples, self._signature_with(place, batching))
        standings = [Standing(bool(holds), *rest) for holds, *rest in peers.gather(*mine.numbers)]
        source = choose_source(standings)
        if source is None:
            # Those before leave the state in storage as they go, unless they are lost.
            if not order.lost:
                mark = self._team.wait_for_mark(HANDED_OVER, order)
                if mark is None:
                    raise Superseded
                self._still_since_s = float(mark)
            place, source = self._load(peers, place), 0
        else:
            self._refuse_strangers(mine, standings, source)
            place = self._catch_up(peers, standings, source, place)
        plan = peers.bytes_from(source, pickle.dumps(batching.state()))
        batching.take_over(pickle.loads(plan))  # noqa: S301  # of a peer: the same job, the same code
        self.holds = True  # not before: with a peer lost until here, the caller keeps the place it had
        return place

    def pause_s(self, still_s: float) -> float:
        """How long training has stood still, on a rank that took its last step `still_s` ago, or never did."""
        since_s, self._still_since_s = self._still_since_s, None
        return still_s if since_s is None else max(0.0, time.time() - since_s)

    def hand_over_by_storage(self, order: Order, place: Place, still_s: float) -> None:
        """None of the present members stays: keep the state for those who come. Ends the process if that fails.

        The last step was `still_s` ago.
        """
        if not self._saver.save(self._replica, place):
            leave_for_retry("the state could not be handed over")
        with suppress(PeersLost, Superseded):  # who was to come is gone; who comes instead finds the state
            self._team.leave_mark(HANDED_OVER, repr(time.time() - still_s), order)

    def _signature_with(self, place: Place, batching: Batching) -> int:
        """What must be the same on all: the model, the data, and what a step takes of it unless told otherwise."""
        what = (self._signature, place.dataset_samples, place.seed, batching.bounds.global_batch)
        return zlib.crc32(repr(what).encode())

    def _refuse_strangers(self, mine: Standing, standings: Sequence[Standing], source: int) -> None:
        if mine.signature != standings[source].signature:
            leave_for_retry(
                "this process differs from those that train: in its model (names, shapes, types), or in the "
                "length of its dataset, its seed or its global batch"
            )
        if any(one.signature != mine.signature for one in standings):
            raise PeersLost("a newcomer has another model, or other data")

    def _catch_up(self, peers: Peers, standings: Sequence[Standing], source: int, place: Place) -> Place:
        receivers = [rank for rank, one in enumerate(standings) if not one.same_place(standings[source])]
        self.sync_bytes = 0
        if receivers:
            self.holds = self.holds and peers.rank not in receivers  # while it is neither the old nor the new
            place, self.sync_bytes = hand_over(
                self._replica.objects, place, peers=peers, source=source, receivers=receivers
            )
        return place

    def _load(self, peers: Peers, place: Place) -> Place:
        """Rank 0's newest checkpoint, or what it has, for everyone."""
        failed, from_generation = False, 0
        together = self._saver.group is not None
        if peers.is_main or together:
            try:
                found = self._saver.load(self._replica)
                if found is not None:
                    place, from_generation = found
            except OSError as error:
                failed = True
                complain(f"the checkpoints cannot be read: {error}")
        outcomes = peers.gather(failed, from_generation)
        if any(failed for failed, _ in outcomes):
            leave_for_retry("rank 0 could not read the checkpoints")
        self.sync_bytes = 0
        if peers.world_size > 1 and not together:
            everyone = range(1, peers.world_size)
            place, self.sync_bytes = hand_over(
                self._replica.objects, place, peers=peers, source=0, receivers=everyone
            )
        if from_generation and peers.is_main:
            self._mailbox.send(Restored, samples=place.samples, from_generation=from_generation)
        return place


def leave_for_retry(sentence: str) -> NoReturn:
    """End the process, and ask for another start."""
    complain(f"{sentence}; this process ends and asks to be started again")
    leave(EXIT_RETRY)


def leave(code: int) -> NoReturn:
    """End the process with its output written, and without the tear-down that torch's threads may not survive."""
    ending.come()
    flush()
    os._exit(code)
