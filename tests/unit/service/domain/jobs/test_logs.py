"""Every byte of a log is shown once, in order within each stream, however pieces arrive and however often a reader comes back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
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
    """Return the pieces that a listing finds."""
    seen = [one.piece for one in there if one.stored_us <= now_us]
    return sorted((one for one in seen if one.name > reading.list_after), key=lambda one: one.name)


@settings(max_examples=50)
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


@pytest.mark.parametrize(
    ("name", "size", "stream", "end", "rank"),
    [
        ("00000000000000005-00000001-000002-000000000003", 7, (1, 2), 10, 2),
        ("00000000000000005-00000001-000002-000000000003-000001", 7, (1, 2), 10, 1),
        ("5-1-2-3", 0, (1, 2), 3, 2),
        ("1700000000000000-12-0-0", 1, (12, 0), 1, 0),
    ],
)
def test_a_chunk_from_its_name(name: str, size: int, stream: Stream, end: int, rank: int) -> None:
    found = LogPiece.of(name, size)
    assert (found.name, found.stream, found.end, found.present_rank) == (name, stream, end, rank)
    assert found.received_us == int(name.split("-", maxsplit=1)[0])


@pytest.mark.parametrize(
    ("wanted", "generation", "rank", "taken"),
    [
        (LogFilter(), 1, 0, True),
        (LogFilter(rank=1), 1, 1, True),
        (LogFilter(rank=1), 1, 0, False),
        (LogFilter(rank=0), 1, 1, False),
        (LogFilter(first=3), 2, 0, False),
        (LogFilter(first=3), 3, 0, True),
        (LogFilter(first=3), 9, 0, True),
        (LogFilter(last=3), 3, 0, True),
        (LogFilter(last=3), 4, 0, False),
        (LogFilter(last=0), 0, 0, True),
        (LogFilter(rank=1, first=2, last=2), 2, 1, True),
    ],
)
def test_which_chunks_a_filter_takes(wanted: LogFilter, generation: int, rank: int, *, taken: bool) -> None:
    assert wanted.takes(piece(0, rank, 0, 1, generation)) is taken


def test_chunks_are_listed_from_a_little_before_the_last_one_shown() -> None:
    reading = LogReading(ALL)
    assert reading.list_after == "0" * 17
    settle_us = int(SETTLE_S * 1e6)
    parts = reading.take([piece(0, 0, 0, 5), piece(9, 1, 0, 5)])
    assert reading.list_after == f"{START_US + 9 - settle_us:017d}"
    again = LogReading(ALL, cursor=parts[-1].cursor)
    assert again.list_after == reading.list_after
    late = LogReading(ALL, cursor=parts[-1].cursor, since_us=START_US + 5)
    assert late.list_after == f"{START_US + 5:017d}"
    assert LogReading(ALL, cursor="5-1-0-0").list_after == "0" * 17, "no time is negative"


def test_a_cursor_names_the_last_chunk_and_the_ends_of_streams() -> None:
    one, two, three = piece(0, 0, 0, 5), piece(1, 1, 0, 3), piece(2, 0, 5, 2)
    parts = LogReading(ALL).take([one, two, three])
    assert [part.cursor for part in parts] == [
        f"{one.name}~1.0.5",
        f"{two.name}~1.0.5~1.1.3",
        f"{three.name}~1.1.3~1.0.7",
    ]


def test_a_cursor_keeps_the_streams_that_were_read_last() -> None:
    pieces = [piece(rank, rank, 0, 5) for rank in range(MOST_STREAMS + 2)]
    cursor = LogReading(ALL).take(pieces)[-1].cursor
    ends = cursor.split("~")[1:]
    assert len(ends) == MOST_STREAMS
    assert (ends[0], ends[-1]) == ("1.2.5", f"1.{MOST_STREAMS + 1}.5")


@pytest.mark.parametrize(
    ("shown", "offset", "size", "part"),
    [
        ([(0, 5)], 5, 3, (0, 8)),
        ([(0, 5)], 0, 5, None),
        ([(0, 5)], 0, 8, (5, 8)),
        ([(0, 5)], 3, 2, None),
        ([(0, 5)], 3, 3, (2, 6)),
        ([(0, 5)], 9, 1, (0, 10)),
        ([], 0, 4, (0, 4)),
    ],
    ids=["next", "again", "longer", "inside", "overlaps", "gap", "first"],
)
def test_a_chunk_is_shown_without_the_bytes_that_were_shown_before(
    shown: list[tuple[int, int]], offset: int, size: int, part: tuple[int, int] | None
) -> None:
    """A chunk whose answer was lost is sent again, perhaps with more bytes."""
    reading = LogReading(ALL)
    reading.take([piece(at, 0, *one) for at, one in enumerate(shown)])
    found = reading.take([piece(100, 0, offset, size)])
    assert [(one.skip, one.piece.end) for one in found] == ([] if part is None else [part])


def test_streams_of_one_rank_in_two_generations_are_two() -> None:
    parts = LogReading(ALL).take([piece(0, 0, 0, 5, generation=1), piece(1, 0, 0, 4, generation=2)])
    assert [(part.skip, part.piece.size_bytes) for part in parts] == [(0, 5), (0, 4)]


def test_each_stream_is_in_the_order_of_its_offsets_despite_the_clocks_of_two_services() -> None:
    early, other, late = piece(5, 0, 0, 5), piece(4, 1, 0, 9), piece(3, 0, 5, 5)
    parts = LogReading(ALL).take([late, other, early])
    assert [part.piece for part in parts] == [early, other, late]
    assert [part.skip for part in parts] == [0, 0, 0]


def test_an_empty_listing_and_empty_chunks_show_nothing() -> None:
    reading = LogReading(ALL)
    assert reading.take([]) == []
    assert reading.take([piece(0, 0, 0, 0)]) == []


def test_what_was_not_wanted_before_is_not_shown_again_with_a_wider_filter() -> None:
    """The cursor covers rank 1 alone; chunks of rank 0 before it were not shown and lie within its time."""
    pieces = [piece(0, 0, 0, 5), piece(1, 1, 0, 5)]
    cursor = LogReading(LogFilter(rank=1)).take(pieces)[-1].cursor
    assert [part.piece for part in LogReading(ALL, cursor=cursor).take(pieces)] == [pieces[0]]


@pytest.mark.parametrize(
    ("cursor", "valid"),
    [
        ("1-1-0-0", True),
        ("17-1-0-5~1.0.5~2.13.99", True),
        ("17-1-2-5-1~1.2.5", True),
        ("17-1-2-5-~1.2.5", False),
        ("", False),
        ("1-1-0", False),
        ("1-1-0-0~", False),
        ("1-1-0-0~1.0", False),
        ("1-1-0-0~1.0.-5", False),
        ("../etc-1-0-0", False),
        ("9" * 21 + "-1-0-0", False),
    ],
)
def test_the_form_of_a_cursor(cursor: str, *, valid: bool) -> None:
    assert bool(CURSOR.fullmatch(cursor)) is valid


def test_one_rank_is_what_was_written_under_it_and_nothing_of_its_process_is_missing() -> None:
    born_2 = [
        LogPiece.of("1-1-2-0", 10),
        LogPiece.of("2-1-2-10-1", 5),
        LogPiece.of("3-1-2-15-1", 5),
        LogPiece.of("4-1-2-20", 5),
    ]
    shown = {rank: LogReading(LogFilter(rank=rank)).take(born_2) for rank in (1, 2)}
    assert [(part.piece.offset, part.skip, part.missing) for part in shown[1]] == [(10, 0, 0), (15, 0, 0)]
    assert [(part.piece.offset, part.skip, part.missing) for part in shown[2]] == [(0, 0, 0), (20, 0, 0)]
    assert LogReading(LogFilter(rank=1), cursor=shown[1][0].cursor).take(born_2) == shown[1][1:]
    (deleted, _) = LogReading(LogFilter(rank=1)).take(born_2[1:3])
    assert deleted.missing == 10
