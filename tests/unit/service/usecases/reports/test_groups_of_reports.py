"""Reports that are written in groups: those about a job that somebody works on are tried again before they are left to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from service.usecases.ports.nodes import Heartbeat
from service.usecases.reports.heartbeat import _TRIES, _Groups
from service.usecases.reports.training import Ingested, RoutineReport


def news(node_id: str) -> RoutineReport:
    return RoutineReport(Heartbeat(node_id, "token", "instance", frozenset(), ()))


class Writer:
    """Writes of every node but those that are busy for so many groups more."""

    def __init__(self, busy: dict[str, int]) -> None:
        self.busy = busy
        self.groups: list[list[str]] = []

    async def write(self, group: Sequence[RoutineReport]) -> Ingested:
        ids = [one.heartbeat.node_id for one in group]
        self.groups.append(ids)
        busy = {one for one in ids if self.busy.get(one, 0) > 0}
        self.busy = {one: left - 1 for one, left in self.busy.items()}
        return Ingested(frozenset(ids) - busy, frozenset(busy))


async def test_who_meets_somebody_else_is_taken_in_with_the_next_group() -> None:
    writer = Writer({"b": 2})
    groups = _Groups(writer.write, most=10)
    taken = await asyncio.gather(*(groups.take(news(one)) for one in "abc"))
    assert taken == [True, True, True]
    assert writer.groups == [["a", "b", "c"], ["b"], ["b"]]


async def test_who_meets_somebody_else_again_and_again_is_left_to_others() -> None:
    writer = Writer({"b": 1000})
    groups = _Groups(writer.write, most=10)
    taken = await asyncio.gather(*(groups.take(news(one)) for one in "ab"))
    assert taken == [True, False]
    assert len(writer.groups) == _TRIES
    assert await groups.take(news("a")), "the next ones are written as ever"
