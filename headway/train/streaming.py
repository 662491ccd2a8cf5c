"""The reading of this rank's part of the data, and the position that all ranks agree on."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.train.checkpoint.replica import Place
from headway.train.data.ledger import Ledger
from headway.train.data.position import Step, order
from headway.train.data.stream_position import Read, StreamPosition, numbered
from headway.train.membership.peers import Peers
from headway.train.shard_reader import OpenShardBy, ShardReader
from headway.train.state.likeness import USUAL_COUNTS


class Reading:
    """The reading of data of which a number of samples is the whole position: there is nothing else to agree on."""

    counts = USUAL_COUNTS
    """Name of the number by which ranks compare their data."""

    def follow(self, place: Place, members: Sequence[str]) -> Place:  # noqa: ARG002
        """Return the position of training with these members, by rank."""
        return place

    def secure(self, peers: Peers, step: Step, place: Place) -> None:
        """Read this rank's samples of the step before it begins, and learn the position behind it.

        Raises:
            PeersLost: a peer is gone.
        """

    def commit(self, place: Place) -> Place:
        """Return the position of training after the step, which is committed."""
        return place

    def collect(self, peers: Peers, place: Place) -> Place:  # noqa: ARG002
        """Return the position with the present states of all ranks' readers, between two steps.

        Raises:
            PeersLost: a peer is gone.
        """
        return place


class StreamReading(Reading):
    """The shards of a stream that this rank reads.

    Args:
        shards: names of the shards, the same on every rank.
        open_shard: opens a shard by its name.
        seed: seed of the order of the shards, anew in each pass; None keeps their order.
        same_order: a shard gives the same samples in the same order whenever it is opened.
    """

    counts = "checksum of the names of the shards"

    def __init__(
        self, shards: Sequence[Any], open_shard: OpenShardBy, *, seed: int | None, same_order: bool
    ) -> None:
        self._shards = shards
        self._open_shard = open_shard
        self._seed = seed
        self._same_order = same_order
        self._readers: dict[int, ShardReader] = {}
        self._samples: list[Any] = []
        self._mine = Ledger()
        self._share = range(0)
        self._before = self._after = StreamPosition()

    def follow(self, place: Place, members: Sequence[str]) -> Place:
        """Return the position with the shards of former members handed on."""
        position = place.stream or StreamPosition()
        return replace(place, stream=position.for_members(members, same_order=self._same_order))

    def secure(self, peers: Peers, step: Step, place: Place) -> None:
        """Read this rank's samples of the step. Ranks exchange the shards that end, and deal further ones.

        Raises:
            PeersLost: a peer is gone.
            ValueError: no shard has a sample.
            RuntimeError: a shard has fewer samples than before.
        """
        assert place.stream is not None, "follow() comes first"
        position = place.stream
        self._keep(position, peers.rank)
        self._samples, self._mine, self._share = [], Ledger(), step.share
        while True:
            report = self._read(position, peers.rank)
            reports = [Read.from_numbers(numbers) for numbers in peers.gather(*report.to_numbers())]
            position = position.after(reports)
            if position.empty_shards >= len(self._shards):
                raise ValueError(
                    f"none of the {len(self._shards)} shards has a sample; check what opens them"
                )
            if not any(one.lacking for one in reports):
                break
        self._before, self._after = place.stream, position

    def samples_of(self, micro_batch: range) -> list[Any]:
        """Return this rank's samples at these positions in the step; for no position, one that has no weight."""
        start = micro_batch.start - self._share.start
        return self._samples[start : start + len(micro_batch)] if micro_batch else self._samples[:1]

    def ledger_of(self, positions: range) -> Ledger:
        """Return the ledger of this rank's share of the step, or of the samples of all ranks."""
        return self._mine if positions == self._share else self._after.trained - self._before.trained

    def commit(self, place: Place) -> Place:
        """Return the position after the step, which is committed."""
        for reader in self._readers.values():
            reader.commit()
        return replace(place, stream=self._after)

    def collect(self, peers: Peers, place: Place) -> Place:
        """Return the position with the present states of all ranks' readers.

        Raises:
            PeersLost: a peer is gone.
            TypeError: a reader's state cannot be kept in a checkpoint.
        """
        assert place.stream is not None, "follow() comes first"
        mine = {
            number: (state, reader.committed)
            for number, reader in self._readers.items()
            if (state := reader.state()) is not None
        }
        states: dict[int, tuple[bytes, int]] = {}
        for rank in range(peers.world_size):
            # From a peer with the same job and the same code.
            states |= pickle.loads(peers.bytes_from(rank, pickle.dumps(mine)))  # noqa: S301
        return replace(place, stream=place.stream.with_states(states))

    def _keep(self, position: StreamPosition, rank: int) -> None:
        """Keep the readers of this rank's shards, at the committed positions, and no other."""
        held = {one.number: one for one in position.lanes[rank].shards}
        self._readers = {
            number: reader
            for number, reader in self._readers.items()
            if number in held and reader.committed <= held[number].samples
        }
        for number, reader in self._readers.items():
            reader.seek(held[number].samples)

    def _read(self, position: StreamPosition, rank: int) -> Read:
        """Read on in this rank's shards until the step has its samples, or the shards have ended."""
        wanted = max(len(self._share), 1)  # a rank without a share takes a sample without weight
        ended: list[int] = []
        for shard in position.lanes[rank].shards:
            if shard.number not in self._readers:
                self._readers[shard.number] = ShardReader(
                    self._open_shard, self._name_of(shard.number), shard
                )
            reader = self._readers[shard.number]
            begin = reader.position
            self._samples += reader.take(wanted - len(self._samples))
            if not self._share and reader.position > begin:
                reader.give_back(1)
            self._mine += numbered(shard.number, begin, reader.position)
            lacking = wanted - len(self._samples)
            if not lacking or len(ended) == Read.MOST_ENDED:
                return Read(tuple(ended), reader.position, lacking)
            ended.append(reader.position)
        return Read(tuple(ended), 0, wanted - len(self._samples))

    def _name_of(self, number: int) -> Any:
        turn, place = divmod(number, len(self._shards))
        if self._seed is None:
            return self._shards[place]
        return self._shards[int(order(len(self._shards), seed=self._seed, epoch=turn)[place])]
