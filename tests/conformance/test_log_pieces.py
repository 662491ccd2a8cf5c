"""The output of ranks, stored in pieces and read again: in pages, from its end, and while pieces go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.client.logs import lines
from headway.contract.views.jobs import LogChunk
from service.adapters.storage import ObjectStorage
from service.domain.jobs.logs import LogFilter, LogReading
from service.usecases.storage.logs import TAIL_BYTES, append_log, last_logs, micros_of, read_logs

NOW = datetime(2026, 3, 10, tzinfo=UTC)
BEGAN = NOW - timedelta(days=30)
ALL = LogFilter()


async def put(objects: ObjectStorage, at: datetime, data: bytes, *, rank: int = 0, offset: int = 0) -> None:
    await append_log(objects, "j1", generation=1, rank=rank, offset=offset, data=data, now=at)


async def read(objects: ObjectStorage, reading: LogReading | None = None) -> list[LogChunk]:
    return [chunk async for chunk in read_logs(objects, "j1", reading or LogReading(ALL))]


def text(chunks: Iterable[LogChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_every_byte_is_read_once(pieces: list[tuple[int, bool]]) -> None:
    """Each piece goes on where the agent believes that the service is: not as far, when an answer was lost."""
    asyncio.run(every_byte_is_read_once(pieces))


async def every_byte_is_read_once(pieces: list[tuple[int, bool]]) -> None:
    objects = ObjectStorage("memory:///")
    offset = stored = 0
    log = bytes(97 + number % 26 for number in range(200))
    for number, (size, answered) in enumerate(pieces):
        now, data = NOW + timedelta(seconds=number), log[offset : offset + size]
        await put(objects, now, data, offset=offset)
        stored = max(stored, offset + size)
        offset += size if answered else 0
    chunks = await read(objects)
    assert text(chunks) == log[:stored].decode()
    assert [chunk.offset for chunk in chunks] == sorted({chunk.offset for chunk in chunks})


async def test_reading_on_begins_behind_the_cursor_and_since_at_a_moment(storage: ObjectStorage) -> None:
    for number in range(4):
        await put(storage, NOW + timedelta(minutes=number), b"%d\n" % number, offset=2 * number)
        await put(
            storage, NOW + timedelta(minutes=number, seconds=1), b"r%d\n" % number, rank=1, offset=3 * number
        )
    chunks = await read(storage)
    assert text(chunks) == "0\nr0\n1\nr1\n2\nr2\n3\nr3\n"
    for number, chunk in enumerate(chunks):
        assert text(await read(storage, LogReading(ALL, cursor=chunk.cursor))) == text(chunks[number + 1 :])
    since = LogReading(LogFilter(rank=1), since_us=micros_of(NOW + timedelta(minutes=2)))
    assert text(await read(storage, since)) == "r2\nr3\n"


async def test_the_last_lines_are_found_wherever_they_are(storage: ObjectStorage) -> None:
    assert (await last_logs(storage, "j1", ALL, lines=3, began=BEGAN, now=NOW))[0] == []
    lines = [b"line %d\n" % number for number in range(30)]
    offset = 0
    for days, line in zip(range(30, 0, -1), lines, strict=True):
        await put(storage, NOW - timedelta(days=days), line, offset=offset)
        offset += len(line)
    for count in (1, 2, 29, 30, 31):
        chunks, reading = await last_logs(storage, "j1", ALL, lines=count, began=BEGAN, now=NOW)
        assert text(chunks) == b"".join(lines[-count:]).decode()
        assert await read(storage, reading) == [], "reading on begins behind them"
    await put(storage, NOW, b"more\n", offset=offset)
    assert text(await read(storage, reading)) == "more\n"


async def test_last_lines_that_are_very_long_are_cut_with_a_word() -> None:
    objects = ObjectStorage("memory:///")
    for number in range(5):
        await put(objects, NOW + timedelta(seconds=number), b"%d" % number * (1 << 20), offset=number << 20)
    chunks, _ = await last_logs(objects, "j1", ALL, lines=10, began=NOW, now=NOW + timedelta(minutes=1))
    said, _, rest = text(chunks).partition("\n")
    assert said.startswith("[headway] The last 10 lines are more than 2 MiB")
    assert rest == "3" * (TAIL_BYTES // 2) + "4" * (TAIL_BYTES // 2)


async def test_last_lines_of_a_progress_bar_are_its_last_states() -> None:
    """Two ranks redraw their bars in pieces that end behind a carriage return or within a line."""
    objects = ObjectStorage("memory:///")
    bar = "".join(f"\rtrain: {step} of 60000 {'#' * 40}" for step in range(60_000)).encode()
    output = b"error before\n" + bar + b"\nlast line\n"
    size = 256 << 10
    ends = range(0, len(output), size)
    for number, offset in enumerate(ends):
        data, now = output[offset : offset + size], NOW + timedelta(seconds=number)
        await put(objects, now, data, offset=offset)
        await put(objects, now + timedelta(milliseconds=500), data, offset=offset, rank=1)
    later = NOW + timedelta(minutes=1)
    chunks, _ = await last_logs(objects, "j1", LogFilter(rank=0), lines=3, began=NOW, now=later)
    assert text(chunks).split("\n")[:2] == ["error before", f"train: 59999 of 60000 {'#' * 40}"]
    chunks, reading = await last_logs(objects, "j1", ALL, lines=4, began=NOW, now=later)
    assert (
        sorted(lines(chunks, prefixed=False)) == ["last line"] * 2 + [f"train: 59999 of 60000 {'#' * 40}"] * 2
    )
    assert await read(objects, reading) == []


async def test_last_lines_read_a_limited_part_of_a_bar_without_an_end() -> None:
    objects = ObjectStorage("memory:///")
    piece = b"50%\r" * (1 << 18)
    for number in range(20):
        await put(objects, NOW + timedelta(seconds=number), piece, offset=number << 20)
    later = NOW + timedelta(minutes=1)
    chunks, _ = await last_logs(objects, "j1", ALL, lines=3, began=NOW, now=later)
    assert text(chunks).startswith("[headway] The last 3 lines are more than")
    assert text(chunks).endswith("50%\r")
    assert len(text(chunks)) < 200


async def test_bytes_that_are_no_text_are_shown_as_far_as_they_are() -> None:
    objects = ObjectStorage("memory:///")
    await put(objects, NOW, bytes(range(256)))
    (chunk,) = await read(objects)
    assert chunk.text.isprintable() is False
    assert chunk.text.endswith("\N{REPLACEMENT CHARACTER}")
    assert LogChunk.model_validate_json(chunk.model_dump_json()) == chunk


class Forgetful(ObjectStorage):
    """Deletes what it was asked to list, as retention may at any time."""

    async def get(self, key: str) -> bytes:
        if key.endswith("-000000000000"):
            await self.delete(key)
        return await super().get(key)


@pytest.mark.parametrize("lines", [None, 5])
async def test_what_is_deleted_while_it_is_read_is_told(lines: int | None) -> None:
    objects = Forgetful("memory:///")
    await put(objects, NOW, b"gone\n")
    await put(objects, NOW + timedelta(seconds=1), b"here\n", offset=5)
    if lines is None:
        chunks = await read(objects)
    else:
        chunks, _ = await last_logs(objects, "j1", ALL, lines=lines, began=NOW, now=NOW)
    assert text(chunks) == "[headway] 5 bytes are not kept any more.\nhere\n"


async def test_a_piece_keeps_the_rank_that_its_process_had_then(storage: ObjectStorage) -> None:
    for number, present in enumerate((None, 2, 1)):
        at, data = NOW + timedelta(seconds=number), b"%d\n" % number
        await append_log(
            storage, "j1", generation=1, rank=2, offset=2 * number, present_rank=present, data=data, now=at
        )
    await put(storage, NOW + timedelta(seconds=1), b"of 1\n", rank=1)
    chunks = await read(storage)
    assert [(one.rank, one.present_rank, one.text) for one in chunks] == [
        (2, 2, "0\n"),
        (1, 1, "of 1\n"),
        (2, 2, "1\n"),
        (2, 1, "2\n"),
    ]
    assert list(lines(chunks, prefixed=True)) == ["[2] 0", "[1] of 1", "[2] 1", "[1] 2"]
    first, then = await read(storage, LogReading(LogFilter(rank=1)))
    assert (first.text, then.text) == ("of 1\n", "2\n")
    assert await read(storage, LogReading(LogFilter(rank=1), cursor=first.cursor)) == [then]
    last, _ = await last_logs(storage, "j1", LogFilter(rank=1), lines=1, began=BEGAN, now=NOW)
    assert text(last) == "2\n"
