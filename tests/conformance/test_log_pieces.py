"""Pieces of a log that were sent again, since no answer came, are read once, and nothing between them is lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.adapters.storage import ObjectStorage
from service.usecases.logs import append_log, read_logs

NOW = datetime(2026, 3, 10, tzinfo=UTC)


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
        await append_log(objects, "j1", generation=1, rank=0, offset=offset, data=data, now=now)
        stored = max(stored, offset + size)
        offset += size if answered else 0
    read = [chunk async for chunk in read_logs(objects, "j1")]
    assert "".join(chunk.text for chunk in read) == log[:stored].decode()
    assert [chunk.offset for chunk in read] == sorted({chunk.offset for chunk in read})
