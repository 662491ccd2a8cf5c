"""Reports without news: one statement renews the leases of everybody who reported while the one before was under way.

An idle agent says nothing but that it is there and what it runs. Thousands do so every few seconds, so such a report costs no
transaction of its own. Whatever is out of the ordinary about it, or about its node, is left to `ingest`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from headway.contract.agents import ReportRequest
from service.domain.errors import HeadwayServiceError
from service.usecases.ports import Transactions
from service.usecases.records import Heartbeat

MOST_AT_ONCE = 500
"""Nodes whose leases one statement renews."""
REPORTS_PER_S = 200
"""As soon as there would be more than so many regular reports a second, agents are asked to report less often."""
_COUNTED_FOR_S = 5.0


def slower_s(nodes: int, usual_s: float, silence_s: float) -> float | None:
    """How often so many nodes are to report, if less often than every `usual_s`: at least three times in `silence_s`."""
    every_s = min(nodes / REPORTS_PER_S, silence_s / 3)
    return every_s if every_s > usual_s else None


def heartbeat_of(report: ReportRequest, node_id: str, token_sha256: str) -> Heartbeat | None:
    """The report as a heartbeat; None if it holds news."""
    if report.entries or report.acknowledged or report.unread:
        return None
    return Heartbeat(
        node_id=node_id,
        token_sha256=token_sha256,
        instance=report.instance,
        holding=frozenset((one.job_id, one.generation) for one in report.holding),
        slots=tuple(report.slots),
    )


@dataclass(slots=True)
class _Waiting:
    heartbeat: Heartbeat
    renewed: asyncio.Future[bool]


class Heartbeats:
    """Renews leases in groups: while one is written, the next one gathers. Nobody waits for company.

    `nodes` is how many there were a few seconds ago.
    """

    def __init__(self, transactions: Transactions, now: Callable[[], datetime]) -> None:
        self.nodes = 0
        self._counted_at: datetime | None = None
        self._transactions = transactions
        self._now = now
        self._waiting: list[_Waiting] = []
        self._renewing: asyncio.Task[None] | None = None

    async def renew(self, heartbeat: Heartbeat) -> bool:
        """Whether the lease was renewed. If not, something is to be said or done about the node: ask `ingest`.

        Raises:
            Unavailable: the database does not answer.
        """
        one = _Waiting(heartbeat, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_all())
        return await one.renewed

    async def _renew_all(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                try:
                    renewed = await self._write([one.heartbeat for one in group])
                except HeadwayServiceError as error:
                    _answer(group, error)
                except BaseException:
                    _answer(group, RuntimeError("renewing leases failed; see the service's log"))
                    raise
                else:
                    for one in group:
                        if not one.renewed.done():
                            one.renewed.set_result(one.heartbeat.node_id in renewed)
        finally:
            self._renewing = None

    def _take(self) -> list[_Waiting]:
        """The next group. Of a node that has reported twice, be it with a wrong token, each is judged for itself."""
        group: dict[str, _Waiting] = {}
        rest = []
        for one in self._waiting:
            if one.heartbeat.node_id in group or len(group) == MOST_AT_ONCE:
                rest.append(one)
            else:
                group[one.heartbeat.node_id] = one
        self._waiting = rest
        return list(group.values())

    async def _write(self, heartbeats: Sequence[Heartbeat]) -> frozenset[str]:
        now = self._now()
        async with self._transactions.begin() as tx:
            renewed = await tx.leases.renew(heartbeats, now)
            if self._counted_at is None or abs((now - self._counted_at).total_seconds()) > _COUNTED_FOR_S:
                self.nodes, self._counted_at = await tx.leases.count(), now
        return renewed


def _answer(group: Sequence[_Waiting], error: Exception) -> None:
    for one in group:
        if not one.renewed.done():
            one.renewed.set_exception(error)
