"""Read the messages that ranks append to files in their control folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.contract.rank_lines import from_line
from headway.contract.runtime import Message

_READ_BYTES = 1 << 20


def size_bytes(path: str) -> int:
    """Return the size of the file, or 0 if there is none. Called many times a second, so it avoids `Path`."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  # a third of the time of `Path.stat`
    except FileNotFoundError:
        return 0


class MessageLine(NamedTuple):
    """One complete line: the message, or the problem with the line. `offset` is the position behind it."""

    message: Message | None
    problem: str
    offset: int


def read_messages(
    path: Path, offset: int, *, rank: int, generation: int, live: bool = False
) -> Iterator[MessageLine]:
    """Yield the complete lines of the file behind `offset`, at most about a megabyte.

    `rank` and `generation` are those that the process was started with. In a `live` job, a process may send
    messages as any rank of a later generation.

    An incomplete line is left for the next call. A line of more than a megabyte is skipped.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_READ_BYTES)
    except FileNotFoundError:
        return
    if len(data) == _READ_BYTES and b"\n" not in data:
        yield MessageLine(None, "the line is longer than one megabyte", offset + len(data))
        return
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        offset += len(line)
        yield _parse(line, offset, rank=rank, generation=generation, live=live)


def _parse(line: bytes, offset: int, *, rank: int, generation: int, live: bool) -> MessageLine:
    try:
        message = from_line(line.decode())
    except ValueError as error:
        return MessageLine(None, str(error), offset)
    own = (
        message.generation >= generation if live else (message.rank, message.generation) == (rank, generation)
    )
    if not own:
        return MessageLine(
            None,
            f"the message names rank {message.rank} of generation {message.generation}, not this process",
            offset,
        )
    return MessageLine(message, "", offset)
