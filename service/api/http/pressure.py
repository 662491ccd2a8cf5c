"""Load shedding: under overload this process answers some requests with 429, and the others without delay.

Queued work delays everything behind it, and clients that time out send again. So at most `PLACES` requests
are in progress: the share of the database connections that belongs to requests.

A request without a free place waits up to `PATIENCE_S`, in the order of `Traffic`: reports of agents that
need a transaction, then reads of users, then writes. After that it gets a 429. Each kind has a limited share
of the places, so that no kind can starve the others.

Reports that only renew a lease are written in batches by `service.usecases.reports.heartbeat` and need no
place. Without them nodes would count as lost, so only their number is bounded.

A place is free again when the answer begins, because the rest costs nothing: streams hold no place.

All requests share the processor. A report that arrives during reads waits for them, up to `AFTER_READS_S`,
because no user waits for a report.

`Lateness` records refused and late reports. While there are recent ones, the service does not mark silent
nodes as LOST.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from types import MappingProxyType

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.problems import service_error
from service.domain.shared.connections import CONNECTIONS
from service.domain.shared.errors import TooBusy


class Traffic(StrEnum):
    """Kinds of requests, the most urgent first. `NEWS` are the reports that need a transaction."""

    REPORTS = "reports"
    NEWS = "news"
    READS = "reads"
    WRITES = "writes"
    LOGS = "logs"


REPORTS = 512
"""Limit of concurrent reports, including those of kind `NEWS`."""
PLACES = CONNECTIONS.requests
_PARTS = {Traffic.NEWS: 0.6, Traffic.READS: 0.6, Traffic.WRITES: 0.75, Traffic.LOGS: 0.15}
SHARES: Mapping[Traffic, int] = MappingProxyType(
    {kind: max(1, round(part * PLACES)) for kind, part in _PARTS.items()}
)
"""Number of places that each kind can have."""
PATIENCE_S: Mapping[Traffic, float] = MappingProxyType(
    {**dict.fromkeys(Traffic, 0.1), Traffic.REPORTS: 1.0, Traffic.NEWS: 1.0}
)
"""Longest wait for a place.

A refused agent reports again only seconds later, so its reports wait longer.
"""
AFTER_READS_S = 0.05
_LONGEST_RETRY_S = 5
_FORGET = 0.98
"""Weight of the past in the share of refused requests, for each request."""


class Gate:
    """Admission to a limited number of places. `rejected` counts refusals by kind."""

    def __init__(
        self,
        places: int,
        shares: Mapping[Traffic, int],
        patience_s: Mapping[Traffic, float] = PATIENCE_S,
    ) -> None:
        self.rejected: Counter[Traffic] = Counter()
        self._free = places
        self._shares = shares
        self._patience_s = patience_s
        self._inside: Counter[Traffic] = Counter()
        self._waiting: dict[Traffic, deque[asyncio.Future[None]]] = {kind: deque() for kind in shares}
        self._refused_share: dict[Traffic, float] = dict.fromkeys(shares, 0.0)
        self._reads_over: asyncio.Future[None] | None = None
        """Future that completes when no read is in progress."""

    async def enter(self, kind: Traffic) -> bool:
        """Take a place, after a short wait if necessary.

        Returns False if there is none. The caller must call `leave` only after True.
        """
        if not self._waiting[kind] and self._has_place(kind):
            self._take(kind)
            return True
        place = asyncio.get_running_loop().create_future()
        self._waiting[kind].append(place)
        try:
            async with asyncio.timeout(self._patience_s[kind]):
                await place
        except TimeoutError:
            if _was_given(place):
                return True  # the place became free as the wait ended
            self._refuse(kind)
            return False
        except asyncio.CancelledError:
            if _was_given(place):
                self.leave(kind)  # the place became free as the client disconnected
            raise
        finally:
            with suppress(ValueError):  # `leave` may have removed it from the queue already
                self._waiting[kind].remove(place)
        return True

    def leave(self, kind: Traffic) -> None:
        """Release a place to the most urgent waiting request that may have it."""
        self._inside[kind] -= 1
        self._free += 1
        if self._reads_over is not None and not self._inside[Traffic.READS]:
            self._reads_over.set_result(None)
            self._reads_over = None
        for other in self._shares:
            if self._has_place(other):
                place = self._next(other)
                if place is not None:
                    self._take(other)
                    place.set_result(None)
                    return

    def retry_after_s(self, kind: Traffic) -> int:
        """Return the seconds until a retry, which grow with the share of refused requests of the kind."""
        return 1 + round((_LONGEST_RETRY_S - 1) * self._refused_share[kind])

    async def after_reads(self, longest_s: float) -> None:
        """Wait until no read is in progress, for at most `longest_s` seconds."""
        if not self._inside[Traffic.READS]:
            return
        if self._reads_over is None:
            self._reads_over = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._reads_over], timeout=longest_s)

    def _next(self, kind: Traffic) -> asyncio.Future[None] | None:
        waiting = self._waiting[kind]
        while waiting:
            place = waiting.popleft()
            if not place.done():
                return place
        return None

    def _has_place(self, kind: Traffic) -> bool:
        return self._free > 0 and self._inside[kind] < self._shares[kind]

    def _take(self, kind: Traffic) -> None:
        self._free -= 1
        self._inside[kind] += 1
        self._refused_share[kind] *= _FORGET

    def _refuse(self, kind: Traffic) -> None:
        self.rejected[kind] += 1
        self._refused_share[kind] = self._refused_share[kind] * _FORGET + (1 - _FORGET)


def _was_given(place: asyncio.Future[None]) -> bool:
    """Return True if the place was assigned. A request that stops waiting cancels its future."""
    return place.done() and not place.cancelled()


def traffic_of(method: str, path: str) -> Traffic | None:
    """Return the kind of a request, or None for a request that always passes.

    Health, metrics, documentation and transfers of bundles always pass. Transfers take as long as the
    client's network.
    """
    if not path.startswith("/api/") or path.startswith("/api/v1/bundles"):
        return None
    if path.startswith("/api/v1/agents"):
        return Traffic.LOGS if "/logs/" in path or path.endswith("/secrets") else Traffic.REPORTS
    return Traffic.READS if method in {"GET", "HEAD", "OPTIONS"} else Traffic.WRITES


_NOT_NOW = frozenset({429, 503})
"""Statuses of reports that were not processed, though nothing is wrong with them."""


class Lateness:
    """Record of this process's latest failure to process a report in time.

    A report counts as arrived with the end of its body. A host that vanishes in the middle of a body causes
    no lateness.

    Args:
        late_s: an answer that takes longer is late.
        clock_s: a monotonic clock, in seconds.
    """

    def __init__(self, late_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._late_s = late_s
        self._clock_s = clock_s
        self._last_s = -math.inf
        self._waiting: dict[int, float] = {}
        """Arrival times of unanswered reports, oldest first."""
        self._numbers = itertools.count()

    def arrived(self) -> int:
        """Record the arrival of a report, and return its number."""
        number = next(self._numbers)
        self._waiting[number] = self._clock_s()
        return number

    def answered(self, number: int, status: int) -> None:
        """Record the start of the answer; `status` is 0 if the client disconnected without one."""
        arrived_s = self._waiting.pop(number)
        if status in _NOT_NOW or self._clock_s() - arrived_s > self._late_s:
            self.refused()

    def refused(self) -> None:
        """Record that a report was refused unread."""
        self._last_s = self._clock_s()

    def was_late(self, since_s: float) -> bool:
        """Return True if a report was late or refused since `since_s`, or waits too long now."""
        arrived_s = next(iter(self._waiting.values()), math.inf)
        return self._last_s >= since_s or self._clock_s() - arrived_s > self._late_s


class Gates:
    """Gates of reports and of requests that need a database connection, and the lateness of reports."""

    def __init__(self, late_s: float = math.inf) -> None:
        self._reports = Gate(REPORTS, {Traffic.REPORTS: REPORTS})
        self._others = Gate(PLACES, SHARES)
        self.lateness = Lateness(late_s)

    def of(self, kind: Traffic) -> Gate:
        """Return the gate for requests of a kind."""
        return self._reports if kind is Traffic.REPORTS else self._others

    async def after_reads(self) -> None:
        """Wait for the reads in progress, for at most `AFTER_READS_S` seconds."""
        await self._others.after_reads(AFTER_READS_S)

    @asynccontextmanager
    async def inside(self, kind: Traffic) -> AsyncIterator[None]:
        """Hold a place while the block runs. Raises TooBusy if there is none."""
        gate = self.of(kind)
        if not await gate.enter(kind):
            raise too_busy(gate, kind)
        try:
            yield
        finally:
            gate.leave(kind)


def too_busy(gate: Gate, kind: Traffic) -> TooBusy:
    """Return the error for a request that the gate has refused."""
    after_s = gate.retry_after_s(kind)
    return TooBusy(
        f"the service is overloaded with {kind}; nothing was done, try again in {after_s} s",
        after_s,
    )


class Pressure:
    """Middleware that admits requests through the gates."""

    def __init__(self, app: ASGIApp, gates: Gates) -> None:
        self._app = app
        self._gates = gates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 429."""
        kind = traffic_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if kind is None:
            await self._app(scope, receive, send)
            return
        gate = self._gates.of(kind)
        if not await gate.enter(kind):
            if kind is Traffic.REPORTS:
                self._gates.lateness.refused()
            await service_error(Request(scope), too_busy(gate, kind))(scope, receive, send)
            return
        visit = _Visit(gate, kind, self._gates.lateness, receive, send)
        try:
            if kind is Traffic.REPORTS:
                await self._gates.after_reads()
            await self._app(scope, visit.receive, visit.send)
        finally:
            visit.leave(0)


class _Visit:
    """Admitted request, until its answer begins."""

    def __init__(self, gate: Gate, kind: Traffic, lateness: Lateness, receive: Receive, send: Send) -> None:
        self._gate = gate
        self._kind = kind
        self._lateness = lateness
        self._receive = receive
        self._send = send
        self._inside = True
        self._number: int | None = None

    async def receive(self) -> Message:
        """Return the next message of the client."""
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and self._inside and self._kind is Traffic.REPORTS and self._number is None:
            self._number = self._lateness.arrived()
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Its start releases the place."""
        if message["type"] == "http.response.start":
            self.leave(message["status"])
        await self._send(message)

    def leave(self, status: int) -> None:
        """Release the place, unless that was done before."""
        if not self._inside:
            return
        self._inside = False
        self._gate.leave(self._kind)
        if self._number is not None:
            self._lateness.answered(self._number, status)
