"""Colours of jobs: stable for each job, and distinct for running jobs while the palette has enough colours."""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

HUES = 12
"""Number of colours in the style sheet: `job-0` and so on."""
_REMEMBERED = 2_000
"""Number of jobs whose colour is kept after they stopped running."""


class Palette:
    """The colours of all jobs that this process draws.

    A job keeps its colour while the process runs and stores it. A new job gets the colour that a digest of
    its id names, or a colour that fewer running jobs, and then fewer other jobs of the page, have. Two
    processes therefore agree on most colours.
    """

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._others: OrderedDict[str, int] = OrderedDict()

    def colours(self, running: Iterable[str], drawn: Iterable[str]) -> dict[str, int]:
        """Return the colour of every job that is running or drawn.

        Args:
            running: jobs that hold slots, in the order of their choice.
            drawn: all jobs of a page.
        """
        wanted = list(dict.fromkeys(running))
        for ended in self._running.keys() - set(wanted):
            self._others[ended] = self._running.pop(ended)
        drawn = [one for one in dict.fromkeys(drawn) if one not in set(wanted)]
        for job in wanted:
            if job not in self._running:
                self._running[job] = self._chosen(job, self._others.pop(job, None), drawn)
        for job in drawn:
            self._others[job] = self._chosen(job, self._others.get(job), drawn)
            self._others.move_to_end(job)
        while len(self._others) > max(_REMEMBERED, len(drawn)):
            self._others.popitem(last=False)
        return {**{job: self._running[job] for job in wanted}, **{job: self._others[job] for job in drawn}}

    def _chosen(self, job: str, kept: int | None, drawn: list[str]) -> int:
        """Return the kept colour, unless it must be given up for another job.

        Otherwise return the least used colour, starting at the preferred one.
        """
        running = Counter(self._running.values())
        page = Counter(self._others[one] for one in drawn if one in self._others and one != job)
        if kept is not None and running[kept] == min(running[hue] for hue in range(HUES)):
            crowded = len(self._running) + len(drawn) > HUES
            if crowded or not page[kept]:
                return kept
        first = preferred(job)
        turns = ((first + step) % HUES for step in range(HUES))
        return min(turns, key=lambda hue: (running[hue], page[hue]))


def preferred(job_id: str) -> int:
    """Return the colour of a job that no other job needs."""
    return zlib.crc32(job_id.encode()) % HUES


def colour_of(colours: Mapping[str, int], job_id: str) -> int:
    """Return a job's colour from the page's colours, or else its preferred colour."""
    return colours[job_id] if job_id in colours else preferred(job_id)
