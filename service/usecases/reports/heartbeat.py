"""Batched processing of the most frequent reports.

While one batch is written, the next one collects.

An idle agent reports only that it is alive and what it runs. A training agent adds its progress. Thousands of
agents do so every few seconds, so no such report gets a transaction of its own. `ingest` processes everything
else, as well as starts and ends of processes: batches of these were slower overall (`docs/benchmarks.md`,
Many agents).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.domain.life.life import Launch
from service.domain.nodes.silence import SilenceRule
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.nodes.links import ProbePlan
from service.usecases.ports.transactions import Transactions
from service.usecases.reports.training import Ingested, RoutineReport, ingest_together

log = structlog.get_logger()

MOST_HEARTBEATS = 500
"""Maximum number of nodes whose leases one statement renews."""
MOST_REPORTS = 100
"""Maximum number of nodes whose entries one transaction processes."""
_COUNTED_FOR_S = 5.0
_TRIES = 16
"""Number of attempts for a report about a locked job.

After them, `ingest` processes it, which waits and costs many times as much.
"""
_AGAIN_AFTER_S = 0.03


class Heartbeats:
    """Batched processing of ordinary reports, with renewal of the leases of their nodes.

    Args:
        transactions: the source of transactions.
        now: the clock of the service.
        launch: the settings that ranks need.
        usual_s: the report interval of agents in a small cluster.
        silence: the rule for the permitted silence of nodes.
    """

    def __init__(
        self,
        transactions: Transactions,
        now: Callable[[], datetime],
        *,
        launch: Launch,
        usual_s: float,
        silence: SilenceRule,
    ) -> None:
        self.links = ProbePlan(transactions, now)
        self._nodes = 0
        self._counted_at: datetime | None = None
        self._transactions = transactions
        self._now = now
        self._launch = launch
        self._usual_s = usual_s
        self._silence = silence
        # Two separate batches: progress reports never delay the renewal of leases.
        self._heartbeats = _Groups(self._renew, MOST_HEARTBEATS)
        self._reports = _Groups(self._ingest, MOST_REPORTS)

    @property
    def slower_s(self) -> float | None:
        """Return the report interval to ask of agents if it is longer than usual, by a recent count of nodes;
        else None.
        """
        return self._silence.slower_s(self._nodes, self._usual_s)

    async def take(self, report: RoutineReport) -> bool:
        """Process a report with its batch. Return False if the report must go to `ingest`.

        That is so if the node or its jobs require another action, or if another transaction has them locked.

        Raises:
            Unavailable: the database does not answer.
        """
        return await (self._heartbeats if report.is_silent else self._reports).take(report)

    async def _renew(self, reports: Sequence[RoutineReport]) -> Ingested:
        now = self._now()
        async with self._transactions.begin() as tx:
            renewed = await tx.nodes.renew_leases([one.heartbeat for one in reports], now)
            if self._counted_at is None or abs((now - self._counted_at).total_seconds()) > _COUNTED_FOR_S:
                self._nodes, self._counted_at = await tx.nodes.count(), now
        return Ingested(renewed)

    async def _ingest(self, reports: Sequence[RoutineReport]) -> Ingested:
        async with self._transactions.begin() as tx:
            return await ingest_together(tx, reports, self._launch, self._now())


@dataclass(slots=True)
class _Waiting:
    report: RoutineReport
    taken: asyncio.Future[bool]
    tries: int = 0


class _Groups:
    """Batched writing of reports, at most `most` at a time.

    While one batch is written, the next one collects. No report waits for a batch to fill.
    """

    def __init__(self, write: Callable[[Sequence[RoutineReport]], Awaitable[Ingested]], most: int) -> None:
        self._write = write
        self._most = most
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def take(self, report: RoutineReport) -> bool:
        """Return True if the report was processed with its batch."""
        one = _Waiting(report, asyncio.get_running_loop().create_future())
        self._join(one)
        return await one.taken

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group = self._next()
                try:
                    ingested = await self._write([one.report for one in group])
                except HeadwayServiceError as error:
                    _fail(group, error)
                except Exception:
                    # Any of the reports may be the cause. Each is then processed alone, and only the faulty
                    # one fails.
                    log.exception("group_failed", reports=len(group))
                    _answer(group, frozenset())
                except BaseException:
                    _fail(group, RuntimeError("the service stops"))
                    raise
                else:
                    self._settle(group, ingested)
        finally:
            self._writing = None

    def _settle(self, group: Sequence[_Waiting], ingested: Ingested) -> None:
        """Answer a batch. Reports that met a locked row wait for a moment and join a later batch."""
        settled: list[_Waiting] = []
        for one in group:
            one.tries += 1
            if one.tries < _TRIES and one.report.heartbeat.node_id in ingested.busy:
                asyncio.get_running_loop().call_later(_AGAIN_AFTER_S, self._join, one)
            else:
                settled.append(one)
        _answer(settled, ingested.nodes)

    def _join(self, one: _Waiting) -> None:
        if one.taken.done():
            return  # the requester has disconnected
        self._waiting.append(one)
        if self._writing is None:
            # The task belongs to no request, so its log lines carry no request id.
            self._writing = asyncio.create_task(self._write_all(), context=Context())

    def _next(self) -> list[_Waiting]:
        """Return the next batch. It has at most one report of a node, since each must be judged by itself."""
        group: dict[str, _Waiting] = {}
        rest = []
        for one in self._waiting:
            node_id = one.report.heartbeat.node_id
            if node_id in group or len(group) == self._most:
                rest.append(one)
            else:
                group[node_id] = one
        self._waiting = rest
        return list(group.values())


def _answer(group: Sequence[_Waiting], taken: frozenset[str]) -> None:
    for one in group:
        if not one.taken.done():
            one.taken.set_result(one.report.heartbeat.node_id in taken)


def _fail(group: Sequence[_Waiting], error: Exception) -> None:
    for one in group:
        if not one.taken.done():
            one.taken.set_exception(error)
