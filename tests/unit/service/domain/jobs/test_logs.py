"""Every byte of a log is shown once, in order within each stream, however pieces arrive and however often a reader comes back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from service.domain.jobs.logs import CURSOR, MOST_STREAMS, SETTLE_S, LogFilter, LogPiece, LogReading, Stream

START_US = 1_700_000_000_000_000
ALL = LogFilter()


def piece(at_us: int, rank: int, offset: int, size: int, generation: int = 1) -> LogPiece:
    return LogPiece.of(f"{START_US + at_us:017d}-{generation:08d}-{rank:06d}-{offset:012d}", size)


@dataclass(frozen=True)
class Sent:
    """A piece, and when it can be seen."""

    piece: LogPiece
    stored_us: int


SENDING = st.tuples(
    st.integers(1, 20),  # its bytes
    st.integers(0, int(SETTLE_S * 0.7e6)),  # how long storing takes
    st.booleans(),  # whether the agent hears the answer
    st.integers(0, 2_000_000),  # how long the agent waits before the next
    st.integers(-2000, 2000),  # by how much the clock of the process that receives it is off
)


def sent_by(rank: int, sendings: list[tuple[int, int, bool, int, int]]) -> tuple[list[Sent], int]:
    """The pieces of a rank, and how long its log is."""
    now_us, offset, length, sent = 10_000, 0, 0, []
    for size, takes_us, answered, waits_us, skew_us in sendings:
        sent.append(Sent(piece(now_us + skew_us, rank, offset, size), now_us + takes_us))
        length = max(length, offset + size)
        offset += size if answered else 0
        now_us += takes_us + waits_us + 1
    return sent, length


def looked_at(reading: LogReading, there: list[Sent], now_us: int) -> list[LogPiece]:
    """What a listing finds."""
    seen = [one.piece for one in there if one.stored_us <= now_us]
    return sorted((one for one in seen if one.name > reading.list_after), key=lambda one: one.name)


@given(
    st.lists(st.lists(SENDING, max_size=6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 9)), max_size=40),
)
def test_a_follower_that_comes_back_again_and_again_sees_every_byte_once(
    ranks: list[list[tuple[int, int, bool, int, int]]], looks: list[tuple[int, int]]
) -> None:
    there, lengths = [], {}
    for rank, sendings in enumerate(ranks):
        sent, lengths[1, rank] = sent_by(rank, sendings)
        there += sent
    shown: dict[Stream, int] = defaultdict(int)
    reading, cursor, now_us = LogReading(ALL), None, 0
    for later_us, breaks_after in [*looks, (10**9, 9), (1, 9)]:
        now_us += later_us
        parts = reading.take(looked_at(reading, there, now_us))
        broken = breaks_after < len(parts)
        for part in parts[:breaks_after] if broken else parts:
            stream = part.piece.stream
            assert part.piece.offset + part.skip == shown[stream], "once, and in order"
            shown[stream] = part.piece.end
            cursor = part.cursor
            assert CURSOR.fullmatch(cursor)
        if broken:  # the connection is gone, and what was found with it
            reading = LogReading(ALL, cursor=cursor)
    for part in reading.take(looked_at(reading, there, now_us)):
        assert part.piece.offset + part.skip == shown[part.piece.stream]
        shown[part.piece.stream] = part.piece.end
    assert {one: shown[one] for one in lengths} == lengths


def test_a_piece_that_was_stored_late_is_not_lost_at_a_seam() -> None:
    slow, quick = piece(0, 0, 0, 5), piece(100, 1, 0, 3)
    first = LogReading(ALL).take([quick])
    assert [part.piece for part in first] == [quick]
    for reading in (
        LogReading(ALL, cursor=first[0].cursor),
        LogReading(ALL, cursor=f"{first[0].cursor}~9.9.9"),
    ):
        assert [part.piece for part in reading.take([slow, quick])] == [slow]


def test_a_cursor_of_an_earlier_version_goes_on_behind_it() -> None:
    pieces = [piece(at, 0, 10 * at, 10) for at in range(3)]
    reading = LogReading(ALL, cursor=pieces[1].name)
    assert [part.piece for part in reading.take(pieces)] == pieces[2:]


def test_a_cursor_stays_short_however_many_ranks_there_are() -> None:
    pieces = [piece(rank, rank, 0, 5) for rank in range(10 * MOST_STREAMS)]
    parts = LogReading(ALL).take(pieces)
    assert max(len(part.cursor) for part in parts) < 2000
    again = LogReading(ALL, cursor=parts[-1].cursor)
    assert again.take([*pieces, piece(10**6, 3, 5, 1)])[0].piece.offset == 5


def test_what_is_not_wanted_is_left_out() -> None:
    pieces = [piece(at, at % 2, 0, 1, generation=1 + at // 2) for at in range(8)]
    taken = LogReading(LogFilter(rank=1, first=2, last=3)).take(pieces)
    assert [(part.piece.generation, part.piece.rank) for part in taken] == [(2, 1), (3, 1)]


def test_only_who_reads_from_the_beginning_is_told_what_is_not_kept() -> None:
    left = [piece(5, 0, 70, 5), piece(6, 0, 75, 5)]
    assert [part.missing for part in LogReading(ALL).take(left)] == [70, 0]
    assert [part.missing for part in LogReading(ALL, since_us=START_US + 1).take(left)] == [0, 0]
    assert LogReading(ALL, since_us=START_US + 1).list_after == f"{START_US + 1:017d}"
