"""The rank that a process had when it wrote a part of its output."""

from __future__ import annotations

import bisect
from itertools import pairwise
from pathlib import Path

import structlog

from headway.contract.renumbering import file_id, renumbering_from_line

_log = structlog.get_logger()

_READ_BYTES = 64 << 10
"""Upper bound on the bytes of notes that are read at once. A job may write anything into its file."""
_KEPT = 256
"""Upper bound on the changes that are remembered, the last ones."""


class PresentRanks:
    """Ranks of one process by offset in its log, as the process notes them before it writes under a new rank.

    Args:
        notes: file with the notes; it may not exist.
        log: the log of the process.
        rank: rank that the process was started with.
    """

    def __init__(self, notes: Path, log: Path, rank: int) -> None:
        self._notes = notes
        self._log = log
        self._read_bytes = 0
        self._begins = [0]
        self._ranks = [rank]

    def update(self, size: int) -> None:
        """Read new notes. `size` is a size of the log that was taken before this call.

        A change whose place in the log is not known, because the output goes through a pipe, counts from `size` on.
        """
        try:
            if self._notes.stat().st_size <= self._read_bytes:
                return
            with self._notes.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read(_READ_BYTES)
            log = file_id(self._log.stat())
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning(
                "could not read the present rank of a process", path=str(self._notes), error=str(error)
            )
            return
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ_BYTES else 0)
        self._read_bytes += whole
        for line in data[:whole].decode(errors="replace").splitlines():
            note = renumbering_from_line(line)
            if note is not None:
                self._begins.append(max(note.sizes.get(log, size), self._begins[-1]))
                self._ranks.append(note.rank)
        del self._begins[:-_KEPT], self._ranks[:-_KEPT]

    def parts(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Return the parts of this output that were written under one rank: begin, end and rank of each."""
        inner = [one for one in dict.fromkeys(self._begins) if begin < one < end]
        return [(first, last, self.at(first)) for first, last in pairwise([begin, *inner, end])]

    def at(self, offset: int) -> int:
        """Return the rank under which the byte at `offset` was written. Before the changes remembered, it is the first of them."""
        return self._ranks[max(0, bisect.bisect_right(self._begins, offset) - 1)]
