"""Colours of jobs: stable for each job, and distinct for running jobs while the palette has enough colours."""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice

HUES = 12
"""Number of colours in the style sheet: `job-0` and so on."""
_REMEMBERED = 2_000
"""Number of jobs whose colour is kept after they stopped running."""


ALIKE: frozenset[frozenset[int]] = frozenset(
    frozenset(pair)
    for pair in ((0, 8), (1, 2), (1, 6), (1, 11), (3, 6), (4, 11), (5, 10), (6, 10), (6, 11), (7, 9))
)
"""Pairs of colours that are close to each other, in the light or the dark scheme."""


class Palette:
    """The colours of all jobs that this process draws.

    A job gets its colour when it first holds slots, or is first drawn after it held some. It keeps the colour
    on every page while the process runs and stores it. Only a job that starts again, while a running job has
    its colour, gets another one.
    """

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._others: OrderedDict[str, int] = OrderedDict()

    def colours(self, running: Iterable[str], drawn: Iterable[str]) -> dict[str, int]:
        """Return the colour of every job that is running or drawn.

        Args:
            running: jobs that hold slots, in the order of their choice.
            drawn: further jobs of a page, which held slots.
        """
        wanted = list(dict.fromkeys(running))
        now = set(wanted)
        for ended in [one for one in self._running if one not in now]:
            self._others[ended] = self._running.pop(ended)
        for job in wanted:
            if job not in self._running:
                self._running[job] = self._chosen(job, self._others.pop(job, None))
        found = {job: self._running[job] for job in wanted}
        for job in dict.fromkeys(drawn):
            if job not in found:
                found[job] = self._others[job] = self._others.get(job, self._chosen(job, None))
        while len(self._others) > _REMEMBERED:
            self._others.popitem(last=False)
        return found

    def _chosen(self, job: str, kept: int | None) -> int:
        """Return the kept colour, unless a running job has it.

        Otherwise return the colour that the fewest running jobs, then the fewest of the latest other jobs, and
        then the fewest running jobs nearly have; among equals the first one from the preferred colour on.
        """
        running = Counter(self._running.values())
        if kept is not None and running[kept] == min(running[hue] for hue in range(HUES)):
            return kept
        latest = Counter(hue for _, hue in islice(reversed(self._others.items()), HUES))
        alike = Counter(
            other for pair in ALIKE for hue in pair for other in pair - {hue} for _ in range(running[hue])
        )
        first = preferred(job)
        turns = ((first + step) % HUES for step in range(HUES))
        return min(turns, key=lambda hue: (running[hue], latest[hue], alike[hue]))


def preferred(job_id: str) -> int:
    """Return the colour of a job that no other job needs."""
    return zlib.crc32(job_id.encode()) % HUES


def colour_of(colours: Mapping[str, int], job_id: str) -> int:
    """Return a job's colour from the page's colours, or else its preferred colour."""
    return colours[job_id] if job_id in colours else preferred(job_id)


def tint_of(colours: Mapping[str, int], job_id: str, *, held: bool) -> str:
    """Return the style class of a job's square. A job that never held slots has no colour yet."""
    return f"job-{colour_of(colours, job_id)}" if held else "unheld"


def mark_of(name: str) -> str:
    """Return the two letters in a job's squares: the first and the last letter or digit of its name."""
    letters = [one for one in name if one.isalnum()]
    return "".join(letters[:1] + letters[1:][-1:])
