"""Client methods about the output of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict, Unpack

from headway.client.calls import Calls, given, job_path
from headway.contract.views.jobs import JobView, LogChunk, Page
from headway.redrawn import last_state


class LogOptions(TypedDict, total=False):
    """Filters for the output of a job.

    `rank` selects what was written under this rank, also by a process that has another rank now. `generation` and
    `attempt` select by the start of the process; an attempt is one start of the job, with all of its
    generations. `since` is a start time, relative (`10m`) or absolute (`2026-03-10T12:00:00Z`). `tail` is a
    number of last lines. `after` is the cursor of the last chunk that was read.
    """

    after: str | None
    rank: int | None
    generation: int | None
    attempt: int | None
    since: str | None
    tail: int | None


LONGEST_LINE = 1 << 20
"""Length limit of a line in characters. A longer line is yielded in parts, without waiting for its end."""


class LogCalls(Calls):
    """Methods about the output of a job, all of it or a part (`LogOptions`)."""

    def logs(
        self, job: str | JobView, *, follow: bool = False, **wanted: Unpack[LogOptions]
    ) -> Iterator[LogChunk]:
        """Yield the output so far, in the order of its arrival, fetching pages on demand.

        With `follow`, also yield new output until the job ends.
        """
        if follow:
            return self.follow_logs(job, **wanted)
        return self._pages(job_path(job, "logs"), Page[LogChunk], wanted)

    def follow_logs(self, job: str | JobView, **wanted: Unpack[LogOptions]) -> Iterator[LogChunk]:
        """Yield output as `logs` does with `follow`."""
        query = given(wanted)
        for received in self._http.follow(job_path(job, "logs"), query):
            chunk = LogChunk.model_validate_json(received.data, extra="ignore")
            query.pop("tail", None)
            query["after"] = chunk.cursor
            yield chunk

    def log_lines(
        self, job: str | JobView, *, follow: bool = False, **wanted: Unpack[LogOptions]
    ) -> Iterator[str]:
        """Yield the output as whole lines. Each starts with its rank in brackets unless `rank` is given."""
        return lines(self.logs(job, follow=follow, **wanted), prefixed=wanted.get("rank") is None)


def lines(chunks: Iterable[LogChunk], *, prefixed: bool, redraws: bool = True) -> Iterator[str]:
    """Yield whole lines from chunks of the output of several ranks. Each starts with its rank if `prefixed`:
    the rank that its process had when the line ended.

    A chunk may end in the middle of a line. Incomplete lines come last. A line of more than `LONGEST_LINE`
    characters is yielded in parts. Without `redraws`, a line that was redrawn, such as a progress bar, is its
    last state.
    """
    rest: dict[tuple[int, int], str] = {}
    ranks: dict[tuple[int, int], int] = {}
    for chunk in chunks:
        key = (chunk.generation, chunk.rank)
        ranks[key] = chunk.shown_rank
        text = rest.get(key, "") + chunk.text
        *whole, rest[key] = text.split("\n")
        if not redraws:
            whole = [last_state(line) for line in whole]
            rest[key] = last_state(rest[key]) + ("\r" if rest[key].endswith("\r") else "")
        if len(rest[key]) > LONGEST_LINE:
            whole.append(rest.pop(key))
        for line in whole:
            yield f"[{ranks[key]}] {line}" if prefixed else line
    for key, left in sorted(rest.items()):
        line = left if redraws else last_state(left)
        if line:
            yield f"[{ranks[key]}] {line}" if prefixed else line
