"""The position of a job in a stream of shards: the shards that ranks read, and the audit. The module does no I/O.

Shards are numbered across passes: number k is a shard of pass k // shards. Every rank computes the same position from the
reports of all ranks, so the position alone determines the remaining samples, at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from headway.train.data.ledger import Ledger

_LONGEST = 2**32
"""Bound on the samples of a shard, by which the samples of all shards are numbered."""


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard that some rank holds. Steps have committed its first `samples` samples.

    `state` is that of its reader after `state_samples` samples, encoded; None: the reader has none, or begins.
    """

    number: int
    samples: int = 0
    state: bytes | None = None
    state_samples: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """The shards of one member, in the order in which it reads them."""

    owner: str
    shards: tuple[OpenShard, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """A rank's report: sizes of the shards that it has read to their end, the samples of the next one, and those it lacks."""

    MOST_ENDED: ClassVar[int] = 2
    """Shards that a rank reports at a time, and holds at least: the one that it reads, and the next."""

    ended: tuple[int, ...]
    samples: int
    lacking: int

    def to_numbers(self) -> tuple[int, ...]:
        """Return the report as integers for `Peers.gather`."""
        sizes = (*self.ended, *(-1,) * (self.MOST_ENDED - len(self.ended)))
        return (*sizes, self.samples, self.lacking)

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Read:
        """Return the report that `to_numbers` converted."""
        *sizes, samples, lacking = numbers
        return cls(tuple(size for size in sizes if size >= 0), samples, lacking)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The shards that were dealt, and the samples of those that ended. `lanes` are by rank."""

    dealt: int = 0
    """Shards dealt to ranks since the job began; also the number of the next one."""
    lanes: tuple[Lane, ...] = ()
    ended: Ledger = field(default_factory=Ledger)
    """Ledger of the samples that must have been trained: those of ended shards, and the repeated ones."""
    ended_shards: int = 0
    empty_shards: int = 0
    """Shards without samples that ended one after the other, up to now."""
    repeated: int = 0
    """Samples trained twice, because a reader could not continue behind them."""
    repeated_shards: int = 0

    def for_members(self, members: Sequence[str], *, same_order: bool) -> StreamPosition:
        """Return the position for these members, by rank. Members keep their shards; those of others are handed on.

        A reader that repeats the order of its samples continues behind the committed ones. Another reader continues at its
        last state, so the samples since are repeated.
        """
        kept = {lane.owner: list(lane.shards) for lane in self.lanes if lane.owner in members}
        orphans = [one for lane in self.lanes if lane.owner not in members for one in lane.shards]
        position = self
        for orphan in sorted(orphans, key=lambda one: one.number):
            shard = orphan
            if not same_order and orphan.samples > orphan.state_samples:
                position = position._repeat(orphan)
                shard = replace(orphan, samples=orphan.state_samples)
            receiver = min(members, key=lambda member: len(kept.get(member, ())))
            kept.setdefault(receiver, []).append(shard)
        lanes = [
            Lane(member, tuple(sorted(kept.get(member, ()), key=lambda one: one.number)))
            for member in members
        ]
        return _deal(replace(position, lanes=tuple(lanes)))

    def after(self, reports: Sequence[Read]) -> StreamPosition:
        """Return the position after the reports of all ranks, by rank, with enough shards for each of them."""
        lanes, ended, ended_shards, empty_shards = [], self.ended, self.ended_shards, self.empty_shards
        for lane, report in zip(self.lanes, reports, strict=True):
            shards = list(lane.shards)
            for size in report.ended:
                ended += numbered(shards.pop(0).number, 0, size)
                ended_shards += 1
                empty_shards = 0 if size else empty_shards + 1
            if shards:
                shards[0] = replace(shards[0], samples=report.samples)
            lanes.append(replace(lane, shards=tuple(shards)))
        return _deal(
            replace(
                self, lanes=tuple(lanes), ended=ended, ended_shards=ended_shards, empty_shards=empty_shards
            )
        )

    def with_states(self, states: Mapping[int, tuple[bytes, int]]) -> StreamPosition:
        """Return the position with states of readers, and the samples before each, by the numbers of their shards."""

        def known(one: OpenShard) -> OpenShard:
            if one.number not in states:
                return one
            state, samples = states[one.number]
            return replace(one, state=state, state_samples=samples)

        return replace(
            self, lanes=tuple(replace(lane, shards=tuple(map(known, lane.shards))) for lane in self.lanes)
        )

    @property
    def trained(self) -> Ledger:
        """The ledger of a training that used each sample once, apart from the repeated ones."""
        parts = [numbered(one.number, 0, one.samples) for lane in self.lanes for one in lane.shards]
        return sum(parts, self.ended)

    def _repeat(self, one: OpenShard) -> StreamPosition:
        again = numbered(one.number, one.state_samples, one.samples)
        return replace(
            self,
            ended=self.ended + again,
            repeated=self.repeated + again.count,
            repeated_shards=self.repeated_shards + 1,
        )


def numbered(shard: int, start: int, stop: int) -> Ledger:
    """Return the ledger of the samples of a shard at these positions in it, numbered across all shards."""
    return Ledger.of_range(shard * _LONGEST + start, shard * _LONGEST + stop)


def position_from(state: Mapping[str, Any]) -> StreamPosition:
    """Return the position that a checkpoint holds as plain values."""
    lanes = [
        Lane(lane["owner"], tuple(OpenShard(**shard) for shard in lane["shards"])) for lane in state["lanes"]
    ]
    return StreamPosition(**{**state, "lanes": tuple(lanes), "ended": Ledger(**state["ended"])})


def _deal(position: StreamPosition) -> StreamPosition:
    """Give every rank its next shards, in turn, so that few shards of the next pass are read before a pass ends."""
    lanes, dealt = list(position.lanes), position.dealt
    for held in range(Read.MOST_ENDED):
        for rank, lane in enumerate(lanes):
            if len(lane.shards) == held:
                lanes[rank] = replace(lane, shards=(*lane.shards, OpenShard(dealt)))
                dealt += 1
    return replace(position, lanes=tuple(lanes), dealt=dealt)
