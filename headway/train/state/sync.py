"""Synchronise all ranks of a generation to the most advanced rank, or to the latest checkpoint."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from torch import nn

from headway.contract.orders import Order
from headway.contract.runtime import EXIT_RETRY, PEER_LOST, Restored, Switched
from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.saving import Saver
from headway.train.collectives.groups import groups_of_script
from headway.train.data.batching import Batching
from headway.train.host.output import exit_actions, flush, warn
from headway.train.membership.control import Mailbox
from headway.train.membership.meeting import PeersLost, Superseded
from headway.train.membership.peers import Peers
from headway.train.membership.team import Team
from headway.train.state.likeness import (
    USUAL_COUNTS,
    Description,
    MemberDiffers,
    compare,
    describe_objects,
    differences,
    digest_of,
    groups_of,
)
from headway.train.state.sharded import ShardedState, ShardMismatch, ShardsLost
from headway.train.state.transfer import signature, transfer_state

STATE_SAVED = "handed over"
"""Name of the marker that leaving ranks set when none of them stays and the state is in storage.

Its value is the time at which training paused.
"""
_NO_CHECKPOINT = -1
"""Number that ranks exchange in place of a generation; 0 is that of a checkpoint of another job."""
_COUNTED = ("excess", "extra_steps", "steps_before", "stream", "accumulates")
"""Parts of the progress in which ranks at one position may differ."""


@dataclass(frozen=True, slots=True)
class StateOffer:
    """A rank's position at the start of a generation, and whether it has the state of that position."""

    has_state: bool
    epoch: int
    samples: int
    signature: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The fields as integers for `Peers.gather`."""
        return self.has_state, self.epoch, self.samples, self.signature

    def matches(self, other: StateOffer) -> bool:
        """Return True if both hold the same state, or neither holds any, at the same position."""
        return (self.has_state, self.epoch, self.samples) == (other.has_state, other.epoch, other.samples)


def choose_source(offers: Sequence[StateOffer]) -> int | None:
    """Return the lowest of the most advanced ranks, whose state all others load; None if no rank has a state.

    After a loss, ranks differ by one step if only some of them received the whole last gradient.
    """
    holders = [rank for rank, one in enumerate(offers) if one.has_state]
    return max(holders, key=lambda rank: (offers[rank].epoch, offers[rank].samples), default=None)


def _describe_data(
    counts: str, signature: int | None, seed: int | None, batching: Batching
) -> dict[str, str]:
    return {
        counts: str(signature),
        "seed of the data": str(seed),
        "global batch": str(batching.bounds.global_batch),
    }


class StateSync:
    """State synchronisation of this rank with its peers.

    `resharder` has the sharded model that changes size in place; None: the model is replicated, or the script shards it.
    """

    def __init__(
        self,
        replica: Replica,
        team: Team,
        saver: Saver,
        mailbox: Mailbox,
        resharder: ShardedState | None = None,
    ) -> None:
        self.has_state = False
        """True if this rank has the state of its position."""
        self.sync_bytes = 0
        """Bytes that the last synchronisation sent or received."""
        self._taken_bytes = 0
        self._paused_since_s: float | None = None
        self._resharder = resharder
        self._replica = replica
        self._team = team
        self._saver = saver
        self._mailbox = mailbox
        self._described_plain = describe_objects(replica.objects)
        self._plain_signature = signature(replica.objects)
        self._restored_into: list[nn.Parameter] | None = None
        self._counts = USUAL_COUNTS

    def start(self, peers: Peers) -> Place:
        """Start the first members from the newest checkpoint. Ends the process if it cannot be read.

        Raises:
            ValueError: the ranks have made different models, or other parameters of them train.
            PeersLost: a peer is gone.
        """
        if self._replica.is_sharded and self._resharder is None:
            self._team.live = False  # a rank that leaves would take its shards with it
        trainable = describe_objects(self._replica.objects, trainable=True)
        if found := compare(peers, {**trainable, **self._groups}):
            raise ValueError(
                f"the ranks have made different models, so they cannot be kept equal ({found}); "
                "make the same model on every rank"
            )
        place = self._load_together(peers, Place())
        self._protect(peers)
        self.has_state = True
        return place

    def load_into_replaced(self, peers: Peers | None, place: Place) -> Place:
        """Load the checkpoint of `start` again if the script has since replaced parameters, on any rank, into which it went.

        Ends the process with a request for a restart if a peer is lost.
        """
        before, self._restored_into = self._restored_into, None  # parameters that are replaced later must go
        if peers is None or before is None or self._replica.is_sharded:
            return place
        now = self._parameters
        replaced = len(now) != len(before) or any(
            one is not its for one, its in zip(now, before, strict=True)
        )
        try:
            if not any(its for (its,) in peers.gather(replaced)):
                return place
            return self._load(peers, place, again=True)
        except PeersLost as loss:
            leave_for_retry(f"{PEER_LOST} before the first step: {loss}")

    @property
    def _parameters(self) -> list[nn.Parameter]:
        models = (one for one in self._replica.objects if isinstance(one, nn.Module))
        return [one for model in models for one in model.parameters()]

    def compare_data(
        self, peers: Peers | None, counts: str, signature: int, seed: int, batching: Batching
    ) -> None:
        """Compare the training data of the first members; others have no `peers` yet. `counts` says what `signature` counts.

        Ends the process with a request for a restart if a peer is lost.

        Raises:
            ValueError: the ranks have different data.
        """
        self._counts = counts
        mine = _describe_data(counts, signature, seed, batching)
        try:
            found = compare(peers, mine) if peers is not None else ""
        except PeersLost as loss:
            leave_for_retry(f"{PEER_LOST} before the first step: {loss}")
        if found:
            raise ValueError(
                f"the ranks have different data ({found}); give every rank the same data and seed"
            )

    def synchronise(self, peers: Peers, order: Order, place: Place, batching: Batching) -> Place:
        """Synchronise state and plan with all members, and return their common position.

        Raises:
            MemberDiffers: this new member has made another model, or has other data.
            PeersLost, Superseded: another membership change is necessary.
        """
        position = place.position
        mine = StateOffer(
            self.has_state, position.epoch, position.samples, self._signature_with(place, batching)
        )
        offers = [StateOffer(bool(has_state), *rest) for has_state, *rest in peers.gather(*mine.numbers)]
        source = choose_source(offers)
        if source is None:
            # The members before this order save the state when they leave, unless they are lost.
            if not order.lost:
                mark = self._team.wait_for_marker(STATE_SAVED, order)
                if mark is None:
                    raise Superseded
                self._paused_since_s = float(mark)
            place, source = self._load_together(peers, place), 0
            batching.restore_noise(place.noise)
        else:
            self._check_signatures(peers, mine, offers, source, self._describe(place, batching))
            place = self._transfer(peers, order, offers, source, place)
            self._form_group(peers)
        # Ranks at one position may have computed its progress, noise and streams from different messages.
        counted = {name: getattr(place, name) for name in _COUNTED}
        change = (self._team.members, self._team.members_before, order.why)
        mine_now = pickle.dumps((batching.state(), counted, change))
        # From a peer with the same job and the same code.
        theirs = pickle.loads(peers.bytes_from(source, mine_now))  # noqa: S301
        plan, counted, change = theirs
        batching.take_over(plan)
        self._team.know(*change)
        place = replace(place, **counted, noise=batching.noise_state)
        self._protect(peers)
        self.has_state = True  # not earlier: if a peer is lost before, the caller keeps its old position
        return place

    def check_live(self, *, renews_groups: bool) -> bool:
        """Return True if this rank can follow orders, once a step has created the optimizer's state.

        `renews_groups`: the script may make its process groups again after a change.
        """
        ours = self._resharder is not None  # FSDP makes groups of the mesh
        if self._team.live and not ours and not renews_groups and (count := groups_of_script()):
            warn(
                f"the job changes size by a restart: the script has made {count} process group{'s' * (count > 1)} with "
                "dist.new_group, which would keep the old members; make them again in a callback of run.after_change"
            )
            self._team.live = False
        if self._resharder is not None and not self._resharder.movable:
            warn(
                "the job changes size by a restart: its placements or optimizer state cannot be moved in place"
            )
            return False
        return self._team.live

    def take_shards(self, order: Order | None) -> None:
        """Take the state out of a sharded model before its ranks change, and move the shards of leaving ranks.

        Without an order a peer was lost. Then, unless its shards have a copy, and if a peer is lost meanwhile, the process ends
        with a request for a restart, because only a checkpoint has that peer's shards.
        """
        peers = self._team.peers
        if self._resharder is None:
            return
        if order is None:
            if self.has_state and not self._resharder.recoverable:
                leave_for_retry(f"{PEER_LOST} with its part of the model")
            if peers is not None:
                peers.abort()  # a checkpoint in progress waits for the lost peer, in a group that ends now
            self._saver.finish()
            return
        if not self.has_state or peers is None or self._team.replaces_everyone(order):
            return
        self._saver.finish()  # its ranks write together, in a group that ends now
        try:
            self._taken_bytes = self._resharder.collect(
                peers, self._team.ranks_before(order), self._team.mesh_under(order)
            )
        except (PeersLost, ShardMismatch) as error:
            leave_for_retry(f"the shards could not be moved: {error}")

    def report_switch(self, peers: Peers, place: Place, idle_s: float, *, lost_steps: int) -> None:
        """Report that training goes on with these peers; this rank's last step was `idle_s` seconds ago."""
        since_s, self._paused_since_s = self._paused_since_s, None
        self._mailbox.send(
            Switched,
            samples=place.samples,
            world_size=peers.world_size,
            pause_s=idle_s if since_s is None else max(0.0, time.time() - since_s),
            lost_steps=lost_steps,
            sync_bytes=self.sync_bytes,
        )

    def save_for_successors(self, order: Order, place: Place, idle_s: float) -> None:
        """Save the state for the new members, because no present member stays; leave for a retry on failure.

        The last step was `idle_s` seconds ago.
        """
        if not self._saver.save(self._replica, place):
            leave_for_retry(self._saver.unsaved("the state could not be saved for the next members"))
        with suppress(PeersLost, Superseded):  # later members find the state in storage
            self._team.leave_marker(STATE_SAVED, repr(time.time() - idle_s), order)

    def _describe(self, place: Place, batching: Batching) -> dict[str, str]:
        """Return what new members must have in common with those that train."""
        data = _describe_data(self._counts, place.dataset_samples, place.seed, batching)
        # A script may add or replace layers at any time, but only before the library shards them.
        model = self._described_plain if self._replica.is_sharded else describe_objects(self._replica.objects)
        return {**model, **self._groups, **data}

    def _signature_with(self, place: Place, batching: Batching) -> int:
        """Return a digest of the model, the optimizers' groups, the data and the script's global batch, equal on matching ranks."""
        data = _describe_data(self._counts, place.dataset_samples, place.seed, batching)
        model = self._plain_signature if self._replica.is_sharded else signature(self._replica.objects)
        return digest_of({"model": str(model), **self._groups, **data})

    @property
    def _groups(self) -> dict[str, str]:
        return groups_of(self._replica.objects, sizes=self._resharder is None)

    def _check_signatures(
        self,
        peers: Peers,
        mine: StateOffer,
        offers: Sequence[StateOffer],
        source: int,
        description: Description,
    ) -> None:
        if all(one.signature == mine.signature for one in offers):
            return
        theirs = pickle.loads(peers.bytes_from(source, pickle.dumps(description)))  # noqa: S301  # from a peer of the job
        if mine.signature != offers[source].signature:
            found = differences(theirs, description, where=("on the ranks that train", "here"))
            raise MemberDiffers(
                f"MEMBER_DIFFERS: this process differs from those that train: {found}.",
                "Make the model and all parameter groups before prepare(), and read the same data on every node.",
            )
        raise PeersLost("a new member has another model, or other data")

    def _protect(self, peers: Peers) -> None:
        if self._resharder is not None:
            self.sync_bytes += self._resharder.protect(peers)

    def _transfer(
        self, peers: Peers, order: Order, offers: Sequence[StateOffer], source: int, place: Place
    ) -> Place:
        if self._resharder is not None:
            return self._transfer_shards(self._resharder, peers, order, offers, source, place)
        receivers = [rank for rank, one in enumerate(offers) if not one.matches(offers[source])]
        self.sync_bytes = 0
        if receivers:
            self.has_state = self.has_state and peers.rank not in receivers  # its state is in transition
            place = self._replace(peers, source, receivers, place)
        return place

    def _replace(self, peers: Peers, source: int, receivers: Sequence[int], place: Place) -> Place:
        """Send the state of a rank to others, and return its place."""
        mine = place, self._replica.settings.changed
        (place, changed), self.sync_bytes = transfer_state(
            self._replica.objects, mine, peers=peers, source=source, receivers=receivers
        )
        if peers.rank in receivers:
            self._replica.settings.take_over(changed)
        return place

    def _transfer_shards(
        self,
        resharder: ShardedState,
        peers: Peers,
        order: Order,
        offers: Sequence[StateOffer],
        source: int,
        place: Place,
    ) -> Place:
        behind = [
            rank for rank, one in enumerate(offers) if one.has_state and not one.matches(offers[source])
        ]
        try:
            if order.lost:
                self._taken_bytes = resharder.recover(
                    peers, has_state=self.has_state, is_behind=peers.rank in behind
                )
            place, moved = resharder.join(peers, source, place, self._team.mesh)
        except (ShardMismatch, ShardsLost) as error:
            leave_for_retry(str(error))
        if behind:
            loose = self._replica.loose
            moved += transfer_state(loose, None, peers=peers, source=source, receivers=behind)[1]
        self.sync_bytes, self._taken_bytes = self._taken_bytes + moved, 0
        return place

    def _load_together(self, peers: Peers, place: Place) -> Place:
        """Load the newest checkpoint, after sharding a model that the library shards."""
        self._form_group(peers)
        if self._resharder is not None:
            if self._resharder.has_begun:
                leave_for_retry("no remaining rank has the state of the sharded model")
            self._resharder.start(peers, self._team.mesh)
        return self._load(peers, place)

    def _form_group(self, peers: Peers) -> None:
        """Form the group in which ranks with shards save and load."""
        if self._replica.is_sharded:
            self._saver.group = peers.another_group()

    def _load(self, peers: Peers, place: Place, *, again: bool = False) -> Place:
        """Load rank 0's newest checkpoint, if any, and send the state to all ranks. `again`: it was reported before."""
        failed, problem, from_generation = False, "", _NO_CHECKPOINT
        together = self._saver.group is not None
        if peers.is_main or together:
            try:
                found = self._saver.load(self._replica)
                if found is not None:
                    place, from_generation = found
            except OSError as error:
                failed, problem = True, " ".join(str(error).split()) or type(error).__name__
        outcomes = peers.gather(failed, from_generation)
        if any(failed for failed, _ in outcomes):
            leave_for_retry(f"the checkpoints cannot be read: {problem or 'another rank says why'}")
        self.sync_bytes = 0
        if peers.world_size > 1 and not together:
            place = self._replace(peers, 0, range(1, peers.world_size), place)
        if outcomes[0][1] != _NO_CHECKPOINT and not again:
            self._restored_into = self._parameters
        if from_generation != _NO_CHECKPOINT and peers.is_main and not again:
            self._mailbox.send(
                Restored,
                samples=place.samples,
                from_generation=from_generation,
                progress=place.progress if place.excess else None,
            )
        return place


def leave_for_retry(sentence: str) -> NoReturn:
    """End the process with a request for a restart."""
    warn(f"{sentence}; this process exits with a request for a restart")
    leave(EXIT_RETRY)


def leave(code: int) -> NoReturn:
    """End the process after writing its output, without a teardown, which torch's threads may not survive."""
    exit_actions.close()
    flush()
    os._exit(code)
