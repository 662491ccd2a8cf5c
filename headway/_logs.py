"""The client's calls about what ranks print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict, Unpack
from urllib.parse import quote

from headway._calls import Calls, given
from headway.contract.jobs import LogChunk, Page


class LogsWanted(TypedDict, total=False):
    """Which output, and from where on.

    `rank`, `generation` and `attempt` (one start of the job, with the generations that it grew and shrank to) say whose; `since`
    from when on, as a time before now (`10m`) or a moment (`2026-03-10T12:00:00Z`); `tail` how many of the last lines; `after` is
    the cursor of the chunk that was read last.
    """

    after: str | None
    rank: int | None
    generation: int | None
    attempt: int | None
    since: str | None
    tail: int | None


class LogCalls(Calls):
    """Output of a job, all of it or some (`LogsWanted`)."""

    def logs(self, job: str, **wanted: Unpack[LogsWanted]) -> Iterator[LogChunk]:
        """What there is so far, in the order of its arrival, fetched as it is used."""
        return self._pages(_path(job), Page[LogChunk], wanted)

    def follow_logs(self, job: str, **wanted: Unpack[LogsWanted]) -> Iterator[LogChunk]:
        """The same, and what is written from now on, until the job is over."""
        query = given(wanted)
        for received in self._http.follow(_path(job), query):
            chunk = LogChunk.model_validate_json(received.data, extra="ignore")
            query.pop("tail", None)
            query["after"] = chunk.cursor
            yield chunk


def _path(job: str) -> str:
    return f"/api/v1/jobs/{quote(job, safe='')}/logs"
