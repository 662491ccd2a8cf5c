"""Read what ranks append to their control folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.contract.runtime import Message, from_line

_READ_BYTES = 1 << 20


def size_bytes(path: str) -> int:
    """How long the file is by now; 0 when there is none. Asked many times a second, so it is quick."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  # a third of the time that `Path` takes
    except FileNotFoundError:
        return 0


class Read(NamedTuple):
    """One complete line: the message, or what is wrong with the line. `offset` is behind it."""

    message: Message | None
    problem: str
    offset: int


def read_messages(
    path: Path, offset: int, *, rank: int, generation: int, live: bool = False
) -> Iterator[Read]:
    """Complete lines of the file behind `offset`, at most about a megabyte of them.

    `rank` and `generation` are those that the process was started with. In a `live` job it may speak as any rank
    of a later generation.

    A line that is not complete yet is left for the next time; one longer than that is skipped.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_READ_BYTES)
    except FileNotFoundError:
        return
    if len(data) == _READ_BYTES and b"\n" not in data:
        yield Read(None, "a line of more than a megabyte", offset + len(data))
        return
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        offset += len(line)
        yield _parse(line, offset, rank=rank, generation=generation, live=live)


def _parse(line: bytes, offset: int, *, rank: int, generation: int, live: bool) -> Read:
    try:
        message = from_line(line.decode())
    except ValueError as error:
        return Read(None, str(error), offset)
    own = (
        message.generation >= generation if live else (message.rank, message.generation) == (rank, generation)
    )
    if not own:
        return Read(None, f"speaks for rank {message.rank} of generation {message.generation}", offset)
    return Read(message, "", offset)
