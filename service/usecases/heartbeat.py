"""Reports that most agents send most of the time, taken in together: whoever reports while one group is written is in the next.

An idle agent says nothing but that it is there and what it runs; one that trains adds how that goes. Thousands do so every few
seconds, so such a report costs no transaction of its own. Whatever is out of the ordinary about it, or about its node, is left
to `ingest`. So are starts and ends of processes: groups of them were slower on the whole (`docs/benchmarks.md`, Many agents).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.domain.errors import HeadwayServiceError
from service.domain.silence import SilenceRule
from service.usecases.ports import Transactions
from service.usecases.training import QuickNews, Taken, take_in_together

log = structlog.get_logger()

MOST_HEARTBEATS = 500
"""Nodes whose leases one statement renews."""
MOST_NEWS = 100
"""Nodes whose news one transaction takes in."""
_COUNTED_FOR_S = 5.0
_TRIES = 16
"""Of a report about a job that somebody else works on, before it is left to `ingest`, which waits, and costs many times as much."""
_AGAIN_AFTER_S = 0.03


class Heartbeats:
    """Takes in reports of which one is like the other, and renews their nodes' leases.

    Args:
        transactions: where to.
        now: the clock of the service.
        usual_s: how often agents report as long as there are few.
        silence: how long nodes may be silent.
    """

    def __init__(
        self, transactions: Transactions, now: Callable[[], datetime], *, usual_s: float, silence: SilenceRule
    ) -> None:
        self._nodes = 0
        self._counted_at: datetime | None = None
        self._transactions = transactions
        self._now = now
        self._usual_s = usual_s
        self._silence = silence
        # Apart: leases are renewed however much there is to be said of training.
        self._heartbeats = _Groups(self._renew, MOST_HEARTBEATS)
        self._news = _Groups(self._take_in, MOST_NEWS)

    @property
    def slower_s(self) -> float | None:
        """How often agents are to report, if less often than usual, by how many nodes there were a few seconds ago."""
        return self._silence.slower_s(self._nodes, self._usual_s)

    async def take(self, news: QuickNews) -> bool:
        """Whether the report was taken in. If not, something is to be said or done about the node or its jobs, or somebody
        works on them: ask `ingest`.

        Raises:
            Unavailable: the database does not answer.
        """
        return await (self._heartbeats if news.is_silent else self._news).take(news)

    async def _renew(self, news: Sequence[QuickNews]) -> Taken:
        now = self._now()
        async with self._transactions.begin() as tx:
            renewed = await tx.leases.renew([one.heartbeat for one in news], now)
            if self._counted_at is None or abs((now - self._counted_at).total_seconds()) > _COUNTED_FOR_S:
                self._nodes, self._counted_at = await tx.leases.count(), now
        return Taken(renewed)

    async def _take_in(self, news: Sequence[QuickNews]) -> Taken:
        async with self._transactions.begin() as tx:
            return await take_in_together(tx, news, self._now())


@dataclass(slots=True)
class _Waiting:
    news: QuickNews
    taken: asyncio.Future[bool]
    tries: int = 0


class _Groups:
    """Writes reports in groups of at most `most`: while one is written, the next one gathers. Nobody waits for company."""

    def __init__(self, write: Callable[[Sequence[QuickNews]], Awaitable[Taken]], most: int) -> None:
        self._write = write
        self._most = most
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def take(self, news: QuickNews) -> bool:
        """Whether the report was taken in with its group."""
        one = _Waiting(news, asyncio.get_running_loop().create_future())
        self._join(one)
        return await one.taken

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group = self._next()
                try:
                    taken = await self._write([one.news for one in group])
                except HeadwayServiceError as error:
                    _fail(group, error)
                except Exception:
                    # Whichever of them it is, each is taken in by itself, and only one of them fails.
                    log.exception("group_failed", reports=len(group))
                    _answer(group, frozenset())
                except BaseException:
                    _fail(group, RuntimeError("the service stops"))
                    raise
                else:
                    self._settle(group, taken)
        finally:
            self._writing = None

    def _settle(self, group: Sequence[_Waiting], taken: Taken) -> None:
        """Answer a group; those who met somebody else wait for a moment, and go with the group that is next then."""
        settled: list[_Waiting] = []
        for one in group:
            one.tries += 1
            if one.tries < _TRIES and one.news.heartbeat.node_id in taken.busy:
                asyncio.get_running_loop().call_later(_AGAIN_AFTER_S, self._join, one)
            else:
                settled.append(one)
        _answer(settled, taken.nodes)

    def _join(self, one: _Waiting) -> None:
        if one.taken.done():
            return  # whoever asked has gone away
        self._waiting.append(one)
        if self._writing is None:
            # Of nobody's request: what is logged meanwhile has no id of one.
            self._writing = asyncio.create_task(self._write_all(), context=Context())

    def _next(self) -> list[_Waiting]:
        """The next group. Of a node that has reported twice, be it with a wrong token, each is judged for itself."""
        group: dict[str, _Waiting] = {}
        rest = []
        for one in self._waiting:
            node_id = one.news.heartbeat.node_id
            if node_id in group or len(group) == self._most:
                rest.append(one)
            else:
                group[node_id] = one
        self._waiting = rest
        return list(group.values())


def _answer(group: Sequence[_Waiting], taken: frozenset[str]) -> None:
    for one in group:
        if not one.taken.done():
            one.taken.set_result(one.news.heartbeat.node_id in taken)


def _fail(group: Sequence[_Waiting], error: Exception) -> None:
    for one in group:
        if not one.taken.done():
            one.taken.set_exception(error)
