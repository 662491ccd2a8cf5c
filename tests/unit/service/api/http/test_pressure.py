"""Admission of requests under load."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from service.api.http.pressure import (
    PLACES,
    REPORTS,
    SHARES,
    Gate,
    Gates,
    Lateness,
    Pressure,
    Traffic,
    traffic_of,
)
from service.domain.shared.connections import CONNECTIONS
from tests.waiting import until

SHORT_S = 0.02
LONG_S = 30.0


def gate(places: int = 2, patience_s: float = LONG_S, **shares: int) -> Gate:
    of = {kind: shares.get(kind.value, places) for kind in (Traffic.NEWS, Traffic.READS, Traffic.WRITES)}
    return Gate(places, of, dict.fromkeys(of, patience_s))


async def waiting(at: Gate, kind: Traffic) -> asyncio.Task[bool]:
    """Somebody who has found no place and waits for one."""
    task = asyncio.create_task(at.enter(kind))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_whoever_finds_no_place_is_sent_away_after_a_while() -> None:
    at = gate(patience_s=SHORT_S)
    assert await at.enter(Traffic.READS)
    assert await at.enter(Traffic.READS)
    assert not await at.enter(Traffic.READS)
    assert at.rejected == {Traffic.READS: 1}


async def test_a_place_that_is_free_again_is_given_at_once() -> None:
    at = gate(places=1)
    assert await at.enter(Traffic.READS)
    second = await waiting(at, Traffic.READS)
    at.leave(Traffic.READS)
    assert await second


async def test_the_most_urgent_goes_first_whoever_came_before() -> None:
    at = gate(places=1)
    assert await at.enter(Traffic.WRITES)
    order: list[Traffic] = []

    async def pass_through(kind: Traffic) -> None:
        assert await at.enter(kind)
        order.append(kind)
        at.leave(kind)

    kinds = (Traffic.WRITES, Traffic.READS, Traffic.NEWS)
    tasks = [asyncio.create_task(pass_through(kind)) for kind in kinds]
    await asyncio.sleep(0)
    at.leave(Traffic.WRITES)
    await asyncio.gather(*tasks)
    assert order == [Traffic.NEWS, Traffic.READS, Traffic.WRITES]


async def test_no_kind_shuts_out_the_others() -> None:
    at = gate(places=3, patience_s=SHORT_S, writes=2)
    assert [await at.enter(Traffic.WRITES) for _ in range(3)] == [True, True, False]
    assert await at.enter(Traffic.NEWS)


def test_every_kind_finds_a_place_beside_any_one_other() -> None:
    """The share of each kind leaves places to others."""
    assert CONNECTIONS.requests == PLACES
    assert all(share < PLACES for share in SHARES.values())
    assert Traffic.REPORTS not in SHARES


async def test_it_recovers_at_once() -> None:
    at = gate(places=1, patience_s=SHORT_S)
    assert await at.enter(Traffic.READS)
    assert not any(await asyncio.gather(*(at.enter(Traffic.READS) for _ in range(200))))
    assert at.retry_after_s(Traffic.READS) == 5
    at.leave(Traffic.READS)
    for _ in range(200):
        assert await at.enter(Traffic.READS)
        at.leave(Traffic.READS)
    assert at.retry_after_s(Traffic.READS) == 1


async def test_a_place_that_is_left_just_as_somebody_stops_waiting_is_free() -> None:
    at = gate(places=1)
    assert await at.enter(Traffic.READS)
    gone = await waiting(at, Traffic.READS)
    gone.cancel()
    at.leave(Traffic.READS)
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await at.enter(Traffic.READS)


async def test_whoever_goes_away_while_it_waits_takes_no_place_along() -> None:
    at = gate(places=1)
    assert await at.enter(Traffic.READS)
    gone, patient = await waiting(at, Traffic.READS), await waiting(at, Traffic.READS)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    at.leave(Traffic.READS)
    assert await patient
    late = await waiting(at, Traffic.READS)
    at.leave(Traffic.READS)
    late.cancel()  # in the very moment in which it gets its place
    await asyncio.gather(late, return_exceptions=True)
    assert await at.enter(Traffic.READS)


@given(st.lists(st.tuples(st.sampled_from([*SHARES]), st.sampled_from(["enter", "leave", "cancel"]))))
def test_places_are_neither_lost_nor_made(steps: list[tuple[Traffic, str]]) -> None:
    async def play() -> None:
        at = Gate(3, dict.fromkeys(SHARES, 2), dict.fromkeys(SHARES, LONG_S))
        tasks: list[tuple[Traffic, asyncio.Task[bool]]] = []
        for kind, what in steps:
            mine = [task for of, task in tasks if of is kind]
            inside = [task for task in mine if task.done()]
            outside = [task for task in mine if not task.done()]
            if what == "enter":
                tasks.append((kind, asyncio.create_task(at.enter(kind))))
            elif what == "leave" and inside:
                tasks.remove((kind, inside[0]))
                at.leave(kind)
            elif what == "cancel" and outside:
                tasks.remove((kind, outside[0]))
                outside[0].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            held = [of for of, task in tasks if task.done()]
            assert len(held) <= 3
            assert all(held.count(of) <= 2 for of in SHARES)
        while tasks:
            kind, task = next((of, task) for of, task in tasks if task.done())
            tasks.remove((kind, task))
            at.leave(kind)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert await at.enter(Traffic.NEWS)
        assert await at.enter(Traffic.NEWS)
        assert await at.enter(Traffic.READS)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/api/v1/agents", Traffic.REPORTS),
        ("POST", "/api/v1/agents/n1/reports", Traffic.REPORTS),
        ("POST", "/api/v1/agents/n1/logs/j1/1/0", Traffic.LOGS),
        ("GET", "/api/v1/jobs", Traffic.READS),
        ("POST", "/api/v1/jobs", Traffic.WRITES),
        ("POST", "/api/v1/jobs/j1/cancel", Traffic.WRITES),
        ("POST", "/api/v1/bundles", None),
        ("GET", "/livez", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ],
)
def test_kinds(method: str, path: str, kind: Traffic | None) -> None:
    assert traffic_of(method, path) is kind


class Service:
    """An application behind `Pressure` whose answers the test lets go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = 0
        self.gates = Gates()
        self.app = Pressure(self._answer, self.gates)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self.began += 1
        if scope["path"] == "/api/v1/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await self.go.wait()
        else:
            await self.go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def get(self, path: str) -> tuple[int, dict[bytes, bytes], Any]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await self.app(scope, receive, send)
        body = sent[1]["body"]
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body) if body else None


async def test_a_refusal_says_when_to_come_back() -> None:
    service = Service()
    inside = [asyncio.create_task(service.get("/api/v1/jobs")) for _ in range(SHARES[Traffic.READS])]
    await until(lambda: service.began == len(inside))
    status, headers, problem = await service.get("/api/v1/jobs")
    assert (status, problem["code"], problem["status"]) == (429, "too_busy", 429)
    assert int(headers[b"retry-after"]) >= 1
    service.go.set()
    assert {status for status, _, _ in await asyncio.gather(*inside)} == {200}
    assert (await service.get("/api/v1/jobs"))[0] == 200


async def test_reports_and_health_pass_a_service_that_is_full_of_reads() -> None:
    service = Service()
    inside = [asyncio.create_task(service.get("/api/v1/jobs")) for _ in range(SHARES[Traffic.READS])]
    await until(lambda: service.began == len(inside))
    passing = [asyncio.create_task(service.get(path)) for path in ("/livez", "/api/v1/agents/n1/reports")]
    await until(lambda: service.began == len(inside) + len(passing))
    service.go.set()
    await asyncio.gather(*inside, *passing)


async def test_streams_hold_no_place() -> None:
    service = Service()
    streams = [asyncio.create_task(service.get("/api/v1/stream")) for _ in range(5 * PLACES)]
    await until(lambda: service.began == len(streams))
    service.go.set()
    assert (await service.get("/api/v1/jobs"))[0] == 200
    await asyncio.gather(*streams)


@dataclass
class Seconds:
    """A clock that the test moves."""

    at_s: float = 100.0

    def __call__(self) -> float:
        return self.at_s


def test_a_report_is_late_when_its_answer_is() -> None:
    clock = Seconds()
    lateness = Lateness(5.0, clock)
    quick, slow = lateness.arrived(), lateness.arrived()
    clock.at_s += 5
    lateness.answered(quick, 200)
    assert not lateness.was_late(0.0)
    clock.at_s += 1
    assert lateness.was_late(clock.at_s), "one has waited for too long, whatever it will be answered"
    lateness.answered(slow, 200)
    assert lateness.was_late(clock.at_s)
    clock.at_s += 1
    assert not lateness.was_late(clock.at_s)
    assert lateness.was_late(clock.at_s - 1)


@pytest.mark.parametrize(
    ("status", "late"), [(200, False), (401, False), (422, False), (429, True), (503, True)]
)
def test_a_report_that_was_not_taken_in_is_late(status: int, late: bool) -> None:
    lateness = Lateness(5.0, Seconds())
    lateness.answered(lateness.arrived(), status)
    assert lateness.was_late(0.0) is late


async def test_a_refused_report_is_late_and_other_refusals_are_not() -> None:
    service = Service()
    reads = [asyncio.create_task(service.get("/api/v1/jobs")) for _ in range(SHARES[Traffic.READS] + 1)]
    await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    assert not service.gates.lateness.was_late(0.0)
    reports = [asyncio.create_task(service.get("/api/v1/agents/n1/reports")) for _ in range(REPORTS + 1)]
    await asyncio.wait(reports, return_when=asyncio.FIRST_COMPLETED)
    assert service.gates.lateness.was_late(0.0)
    service.go.set()
    await asyncio.gather(*reads, *reports)


async def test_a_host_that_vanishes_in_the_middle_of_its_report_is_not_late() -> None:
    """Else nobody would notice that it is gone."""
    gates, clock, asked = Gates(), Seconds(), asyncio.Event()
    gates.lateness = Lateness(5.0, clock)

    async def read_all(_: Scope, receive: Receive, __: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    pieces = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> Message:
        for piece in pieces:
            return piece
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing comes any more")

    async def send(_: Message) -> None:
        raise AssertionError("there is nothing to answer")

    scope = {"type": "http", "method": "POST", "path": "/api/v1/agents/n1/reports"}
    report = asyncio.create_task(Pressure(read_all, gates)(scope, receive, send))
    await asked.wait()
    clock.at_s += 60
    assert not gates.lateness.was_late(0.0)
    report.cancel()
    await asyncio.gather(report, return_exceptions=True)
    assert not gates.lateness.was_late(0.0)


async def test_who_looks_at_something_goes_first() -> None:
    at = gate()
    await at.after_reads(LONG_S)
    for _ in range(2):
        assert await at.enter(Traffic.READS)
    lets_go = [asyncio.create_task(at.after_reads(LONG_S)) for _ in range(3)]
    await asyncio.sleep(0)
    at.leave(Traffic.READS)
    await asyncio.sleep(0)
    assert not any(one.done() for one in lets_go), "another one looks"
    at.leave(Traffic.READS)
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*lets_go)


async def test_whoever_looks_for_long_is_not_waited_for() -> None:
    at = gate()
    assert await at.enter(Traffic.READS)
    async with asyncio.timeout(LONG_S):
        await at.after_reads(SHORT_S)
    at.leave(Traffic.READS)
    assert await at.enter(Traffic.READS)
    again = asyncio.create_task(at.after_reads(LONG_S))
    await asyncio.sleep(0)
    at.leave(Traffic.READS)
    async with asyncio.timeout(LONG_S):
        await again
