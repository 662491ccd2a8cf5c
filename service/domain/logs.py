"""Which bytes of the stored pieces of a job's output a reader is shown next: every byte once, whatever order pieces come in.

A stream is what one rank writes in one generation. Its agent sends a piece only after the one before was answered, so pieces of
a stream are stored in the order of their offsets; one whose answer was lost is stored twice, the second time perhaps longer. A
piece is named by when it was received, and is seen only once it is stored: pieces of other streams, received a little later, may
be seen before it. A reader therefore looks again at what was received within the last `SETTLE_S`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

SETTLE_S: Final = 20.0
"""From a piece's receipt to when every reader sees it, at most; one that takes longer to store is sent again."""
MOST_STREAMS: Final = 64
"""So many streams, those read last, are remembered in a cursor."""
CURSOR: Final = re.compile(
    r"[0-9]{1,20}-[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,15}(~[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,15})*"
)
_SETTLE_US: Final = int(SETTLE_S * 1_000_000)

Stream: TypeAlias = tuple[int, int]
"""Generation and rank."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stored piece. `offset` is that of its first byte within its stream."""

    name: str
    received_us: int
    """Unix time, microseconds."""
    generation: int
    rank: int
    offset: int
    size_bytes: int

    @classmethod
    def of(cls, name: str, size_bytes: int) -> LogPiece:
        """From what it is called in storage: `<received>-<generation>-<rank>-<offset>`."""
        received_us, generation, rank, offset = (int(part) for part in name.split("-"))
        return cls(name, received_us, generation, rank, offset, size_bytes)

    @property
    def stream(self) -> Stream:
        """Whose output it is."""
        return self.generation, self.rank

    @property
    def end(self) -> int:
        """Offset of the byte behind its last."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Whose output is wanted: that of one rank or of all, of generations from `first` to `last`."""

    rank: int | None = None
    first: int = 0
    last: int | None = None

    def takes(self, piece: LogPiece) -> bool:
        """Whether a piece is wanted."""
        of_rank = self.rank is None or piece.rank == self.rank
        return (
            of_rank
            and self.first <= piece.generation
            and (self.last is None or piece.generation <= self.last)
        )


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be shown of a piece: all but its first `skip` bytes. Whoever has been shown it goes on after `cursor`."""

    piece: LogPiece
    skip: int
    missing: int
    """Bytes before it that are not stored any more, and that the reader has not been told of."""
    cursor: str


class LogReading:
    """How far a reader is.

    Args:
        wanted: whose output is read.
        cursor: what the reader was shown last; None: nothing yet.
        since_us: nothing that was received before, Unix time in microseconds.
    """

    def __init__(self, wanted: LogFilter, *, cursor: str | None = None, since_us: int = 0) -> None:
        self._wanted = wanted
        self._since_us = since_us
        self._tells = cursor is None and not since_us
        """Whether what was lost before the first piece of a stream is to be told."""
        name, *told = (cursor or "").split("~")
        self._shown_to = name
        self._latest = name
        self._ends: dict[Stream, int] = {}
        """Up to where each stream was shown, the one that was shown last at the end."""
        for one in told:
            generation, rank, end = (int(part) for part in one.split("."))
            self._ends[generation, rank] = end
        self._told = frozenset(self._ends)
        self._knows_all = 0 < len(self._ends) < MOST_STREAMS
        """Whether a stream that the cursor does not name had not been shown within `SETTLE_S` before it."""

    @property
    def list_after(self) -> str:
        """Names up to this one need not be looked at."""
        latest_us = LogPiece.of(self._latest, 0).received_us if self._latest else 0
        return f"{max(self._since_us, latest_us - _SETTLE_US, 0):017d}"

    def take(self, pieces: Sequence[LogPiece]) -> list[Part]:
        """What of them is to be shown now. `pieces` were found together, after `list_after`, in the order of their names."""
        parts = []
        for piece in _in_order([one for one in pieces if self._wanted.takes(one)]):
            end = self._ends.get(piece.stream)
            if piece.end <= (end or 0) or self._was_shown(piece):
                self._ends[piece.stream] = max(piece.end, end or 0)
                continue
            self._ends.pop(piece.stream, None)
            self._ends[piece.stream] = piece.end
            self._latest = max(self._latest, piece.name)
            missing = piece.offset if end is None and self._tells else 0
            parts.append(Part(piece, max(0, (end or 0) - piece.offset), missing, self._cursor()))
        return parts

    def _was_shown(self, piece: LogPiece) -> bool:
        """Whether a piece lies before the cursor that this reader began with, which says nothing of its stream."""
        return piece.name <= self._shown_to and not self._knows_all and piece.stream not in self._told

    def _cursor(self) -> str:
        streams = list(self._ends.items())[-MOST_STREAMS:]
        return self._latest + "".join(f"~{generation}.{rank}.{end}" for (generation, rank), end in streams)


def _in_order(pieces: Sequence[LogPiece]) -> list[LogPiece]:
    """The same, each stream by its offsets: two processes of the service may have clocks that differ a little."""
    streams: dict[Stream, list[LogPiece]] = defaultdict(list)
    for piece in pieces:
        streams[piece.stream].append(piece)
    by_offset = {one: iter(sorted(found, key=lambda piece: piece.offset)) for one, found in streams.items()}
    return [next(by_offset[piece.stream]) for piece in pieces]
