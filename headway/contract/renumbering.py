"""The notes by which a rank says that it has another rank from here on in its output.

A process keeps the file names of the rank that it was started with, so its agent learns its present rank from these
notes. Standard library only, like `runtime`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

MAX_RANK = 999_999
"""Highest rank in a note: the names of stored pieces of output have six digits for it."""
_STREAMS = (1, 2)


@dataclass(frozen=True, slots=True)
class Renumbering:
    """A change of the rank of a process to `rank`.

    `sizes` are the bytes of its output files at that moment, by `file_id`. It is empty if the output goes to pipes.
    """

    rank: int
    sizes: dict[str, int]


def ranks_file(rank: int) -> str:
    """Return the name of the file in the control folder with the renumberings of the process started as `rank`."""
    return f"ranks-{rank}.jsonl"


def file_id(status: os.stat_result) -> str:
    """Return the name of a file that is the same for all processes of a host, whatever path they know it by."""
    return f"{status.st_dev}:{status.st_ino}"


def renumbered(rank: int, outputs: Iterable[int] = _STREAMS) -> Renumbering:
    """Return the note that this process has `rank` from now on. `outputs` are its output streams."""
    found = []
    for one in outputs:
        with suppress(OSError):  # a script may close them
            found.append(os.fstat(one))
    return Renumbering(rank, {file_id(one): one.st_size for one in found})


def renumbering_to_line(note: Renumbering) -> str:
    """Return the line of the file, with its end."""
    return json.dumps({"rank": note.rank, "sizes": note.sizes}) + "\n"


def renumbering_from_line(line: str) -> Renumbering | None:
    """Read a line; None if it is no such note. Unknown fields are ignored: a newer library may write more."""
    try:
        fields = json.loads(line)
        rank, sizes = fields["rank"], fields["sizes"]
        if not (_is_count(rank) and rank <= MAX_RANK and all(map(_is_count, sizes.values()))):
            return None
        return Renumbering(rank, {str(name): size for name, size in sizes.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
