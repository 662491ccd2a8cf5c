"""Selection of stored log chunks for a reader, so that it sees every byte once although chunks arrive out of
order.

A stream is the output of one process, named by the generation and rank of its start. Its agent sends a chunk only after the service has
answered the previous one, so the chunks of a stream are stored in the order of their offsets. A chunk whose
answer was lost is stored twice, the second time perhaps longer.

The name of a chunk contains the time of its receipt, but a reader sees a chunk only once it is stored. Chunks
of other streams that arrived a little later may be visible earlier. A reader therefore looks again at all
chunks received within the last `SETTLE_S` seconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

SETTLE_S: Final = 20.0
"""Upper bound in seconds from the receipt of a chunk until all readers see it; the agent resends slower
chunks.
"""
MOST_STREAMS: Final = 64
"""Maximum number of streams in a cursor: those read last."""
CURSOR: Final = re.compile(
    r"[0-9]{1,20}-[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,15}(-[0-9]{1,10})?(~[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,15})*"
)
_SETTLE_US: Final = int(SETTLE_S * 1_000_000)

Stream: TypeAlias = tuple[int, int]
"""Pair of generation and rank of the start of a process."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stored chunk of log output.

    `offset` is the position of its first byte within its stream. Its process had `present_rank` when it wrote it.
    """

    name: str
    received_us: int
    """Time of receipt, as Unix time in microseconds."""
    generation: int
    rank: int
    offset: int
    size_bytes: int
    present_rank: int

    @classmethod
    def of(cls, name: str, size_bytes: int) -> LogPiece:
        """Parse a chunk from its name in storage: `<received>-<generation>-<rank>-<offset>[-<present rank>]`."""
        received_us, generation, rank, offset, *present = (int(part) for part in name.split("-"))
        return cls(name, received_us, generation, rank, offset, size_bytes, present[0] if present else rank)

    @property
    def stream(self) -> Stream:
        """Stream that the chunk belongs to."""
        return self.generation, self.rank

    @property
    def end(self) -> int:
        """Offset of the byte after its last byte."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Filter for output: of one rank or of all ranks, in the generations from `first` to `last`.

    `rank` is the rank that a process had when it wrote the output.
    """

    rank: int | None = None
    first: int = 0
    last: int | None = None

    def takes(self, piece: LogPiece) -> bool:
        """Return True if the filter selects this chunk."""
        of_rank = self.rank is None or piece.present_rank == self.rank
        return (
            of_rank
            and self.first <= piece.generation
            and (self.last is None or piece.generation <= self.last)
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a chunk to show: all but its first `skip` bytes. A reader that has it continues after
    `cursor`.
    """

    piece: LogPiece
    skip: int
    missing: int
    """Number of bytes before the chunk that are no longer stored, if the reader does not know of them yet."""
    cursor: str


class LogReading:
    """The position of a reader in the log.

    Args:
        wanted: filter for the streams to read.
        cursor: cursor of the last chunk that the reader was shown; None at the beginning.
        since_us: time from which chunks are shown, as Unix time in microseconds.
    """

    def __init__(self, wanted: LogFilter, *, cursor: str | None = None, since_us: int = 0) -> None:
        self._wanted = wanted
        self._since_us = since_us
        self._reports_missing = cursor is None and not since_us
        """True if the reader is told about bytes lost before the first chunk of a stream."""
        name, *ends = (cursor or "").split("~")
        self._shown_to = name
        self._latest = name
        self._ends: dict[Stream, int] = {}
        """Offset up to which each stream has been shown, in the order of the last reads."""
        for one in ends:
            generation, rank, end = (int(part) for part in one.split("."))
            self._ends[generation, rank] = end
        self._passed: dict[Stream, int] = {}
        """Offset up to which each stream is known to exist, shown or not: a part of it may be another rank's."""
        self._in_cursor = frozenset(self._ends)
        self._knows_all = 0 < len(self._ends) < MOST_STREAMS
        """True if every stream missing from the cursor was not shown within `SETTLE_S` before the cursor."""

    @property
    def list_after(self) -> str:
        """Return the name up to which the reader need not list chunks."""
        latest_us = LogPiece.of(self._latest, 0).received_us if self._latest else 0
        return f"{max(self._since_us, latest_us - _SETTLE_US, 0):017d}"

    def take(self, pieces: Sequence[LogPiece]) -> list[Part]:
        """Return the parts to show now from `pieces`: chunks listed together after `list_after`, sorted by
        name.
        """
        parts = []
        for piece in _in_order(pieces):
            passed = self._passed.get(piece.stream, 0)
            self._passed[piece.stream] = max(passed, piece.end)
            if not self._wanted.takes(piece):
                continue
            end = self._ends.get(piece.stream)
            if piece.end <= (end or 0) or self._was_shown(piece):
                self._ends[piece.stream] = max(piece.end, end or 0)
                continue
            self._ends.pop(piece.stream, None)
            self._ends[piece.stream] = piece.end
            self._latest = max(self._latest, piece.name)
            missing = max(0, piece.offset - passed) if end is None and self._reports_missing else 0
            parts.append(Part(piece, max(0, (end or 0) - piece.offset), missing, self._cursor()))
        return parts

    def _was_shown(self, piece: LogPiece) -> bool:
        """Return True if a chunk precedes the reader's initial cursor, and that cursor does not cover the
        chunk's stream.
        """
        return piece.name <= self._shown_to and not self._knows_all and piece.stream not in self._in_cursor

    def _cursor(self) -> str:
        streams = list(self._ends.items())[-MOST_STREAMS:]
        return self._latest + "".join(f"~{generation}.{rank}.{end}" for (generation, rank), end in streams)


def _in_order(pieces: Sequence[LogPiece]) -> list[LogPiece]:
    """Return the chunks with each stream sorted by offset: the clocks of two service processes may differ
    slightly.
    """
    streams: dict[Stream, list[LogPiece]] = defaultdict(list)
    for piece in pieces:
        streams[piece.stream].append(piece)
    by_offset = {one: iter(sorted(found, key=lambda piece: piece.offset)) for one, found in streams.items()}
    return [next(by_offset[piece.stream]) for piece in pieces]
