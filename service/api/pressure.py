"""Under more load than it can serve, this process answers some requests with 429 at once, and the others as fast as ever.

Work that waits inside a process makes everything after it late, and clients that give up waiting ask again. So only
`PLACES` requests are worked on at a time, which is fewer than there are connections to the database. Whoever finds no place
waits for one, for as long as `PATIENCE_S` says and in the order of `Traffic`: news of agents first, then what users look at,
then what they submit. Whoever has waited for so long is told to come back later. Every kind can have only a share of the
places, so that none of them shuts out the others for ever.

Reports that only say that a node is there are written together by `usecases.heartbeat` and need no place among these: without
them nodes are taken for lost, so nothing else may keep them out. Only how many reports are inside at a time is bounded.

A place is free again as soon as an answer begins, since what is left of it costs nothing: streams hold none.

The processor is what all of them share: a report that comes while users wait for what they look at begins when they have it,
or after `AFTER_READS_S`. Nobody looks at a report.

Reports that were refused, or answered late, are kept in mind (`Lateness`): as long as there are any, the service takes no
node's silence for its end.
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

from service.api.problems import service_error
from service.domain.errors import TooBusy


class Traffic(StrEnum):
    """Kinds of requests, the most urgent first."""

    REPORTS = "reports"
    NEWS = "news"
    READS = "reads"
    WRITES = "writes"
    LOGS = "logs"


REPORTS = 512
"""Reports that are inside at a time, those with news among them."""
PLACES = 13
SHARES: Mapping[Traffic, int] = MappingProxyType(
    {Traffic.NEWS: 8, Traffic.READS: 8, Traffic.WRITES: 10, Traffic.LOGS: 2}
)
"""How many of the places each kind can have."""
PATIENCE_S: Mapping[Traffic, float] = MappingProxyType(
    {**dict.fromkeys(Traffic, 0.1), Traffic.REPORTS: 1.0, Traffic.NEWS: 1.0}
)
"""An agent that is sent away is heard of seconds later only; it waits for a while rather."""
AFTER_READS_S = 0.05
_LONGEST_RETRY_S = 5
_FORGET = 0.98
"""Of what is known about refusals, what the next request leaves."""


class Gate:
    """Who may be worked on. `rejected` counts who was sent away."""

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
        """Whoever waits until no read is inside, waits for this."""

    async def enter(self, kind: Traffic) -> bool:
        """Take a place, waiting a little if need be. False: there is none; `leave` must be called only if there was."""
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
                return True  # in the very moment in which patience ended
            self._refuse(kind)
            return False
        except asyncio.CancelledError:
            if _was_given(place):
                self.leave(kind)  # in the very moment in which its client went away
            raise
        finally:
            with suppress(ValueError):  # whoever left meanwhile has looked for the next one behind it
                self._waiting[kind].remove(place)
        return True

    def leave(self, kind: Traffic) -> None:
        """Give the place back: to the most urgent of those that wait and may have it."""
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
        """When to come back: the later, the more of its kind are being sent away."""
        return 1 + round((_LONGEST_RETRY_S - 1) * self._refused_share[kind])

    async def after_reads(self, longest_s: float) -> None:
        """Return when no read is inside, but not later than so."""
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
    """Whoever stops waiting for a place cancels it."""
    return place.done() and not place.cancelled()


def traffic_of(method: str, path: str) -> Traffic | None:
    """The kind of a request; None for one that always passes: health, metrics, documentation, and transfers of bundles,
    which take as long as their client's network does.
    """
    if not path.startswith("/api/") or path.startswith("/api/v1/bundles"):
        return None
    if path.startswith("/api/v1/agents"):
        return Traffic.LOGS if "/logs/" in path or path.endswith("/secrets") else Traffic.REPORTS
    return Traffic.READS if method in {"GET", "HEAD", "OPTIONS"} else Traffic.WRITES


_NOT_NOW = frozenset({429, 503})
"""What a report is answered with that was not taken in, and not for anything that is wrong with it."""


class Lateness:
    """When this process last failed to take in a report in time.

    A report has arrived when the last of its body has: what a host sends that vanishes in the middle of it, is never late.

    Args:
        late_s: an answer that takes longer is late.
        clock_s: seconds of a clock that only ever goes forward.
    """

    def __init__(self, late_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._late_s = late_s
        self._clock_s = clock_s
        self._last_s = -math.inf
        self._waiting: dict[int, float] = {}
        """When each of those arrived that are not answered, the first of them first."""
        self._numbers = itertools.count()

    def arrived(self) -> int:
        """A report is there. Returns its number."""
        number = next(self._numbers)
        self._waiting[number] = self._clock_s()
        return number

    def answered(self, number: int, status: int) -> None:
        """An answer to it begins; a `status` of 0: it got none, since its client went away."""
        arrived_s = self._waiting.pop(number)
        if status in _NOT_NOW or self._clock_s() - arrived_s > self._late_s:
            self.refused()

    def refused(self) -> None:
        """A report was sent away unread."""
        self._last_s = self._clock_s()

    def was_late(self, since_s: float) -> bool:
        """Whether a report was late or was refused since then, or waits too long now."""
        arrived_s = next(iter(self._waiting.values()), math.inf)
        return self._last_s >= since_s or self._clock_s() - arrived_s > self._late_s


class Gates:
    """The gate of reports, and that of everything that needs the database for itself; and how late reports are."""

    def __init__(self, late_s: float = math.inf) -> None:
        self._reports = Gate(REPORTS, {Traffic.REPORTS: REPORTS})
        self._others = Gate(PLACES, SHARES)
        self.lateness = Lateness(late_s)

    def of(self, kind: Traffic) -> Gate:
        """The gate that requests of a kind go through."""
        return self._reports if kind is Traffic.REPORTS else self._others

    async def after_reads(self) -> None:
        """Let those go before who look at something now."""
        await self._others.after_reads(AFTER_READS_S)

    @asynccontextmanager
    async def inside(self, kind: Traffic) -> AsyncIterator[None]:
        """A place as long as the block runs. Raises TooBusy when there is none."""
        gate = self.of(kind)
        if not await gate.enter(kind):
            raise too_busy(gate, kind)
        try:
            yield
        finally:
            gate.leave(kind)


def too_busy(gate: Gate, kind: Traffic) -> TooBusy:
    """What is said to whom the gate has sent away."""
    after_s = gate.retry_after_s(kind)
    return TooBusy(
        f"the service has more {kind} to work on than it can; nothing was done, try again in {after_s} s",
        after_s,
    )


class Pressure:
    """Lets in what the gates let in."""

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
    """A request that was let in, until its answer begins."""

    def __init__(self, gate: Gate, kind: Traffic, lateness: Lateness, receive: Receive, send: Send) -> None:
        self._gate = gate
        self._kind = kind
        self._lateness = lateness
        self._receive = receive
        self._send = send
        self._inside = True
        self._number: int | None = None

    async def receive(self) -> Message:
        """What the client sends next."""
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and self._inside and self._kind is Traffic.REPORTS and self._number is None:
            self._number = self._lateness.arrived()
        return message

    async def send(self, message: Message) -> None:
        """A part of the answer."""
        if message["type"] == "http.response.start":
            self.leave(message["status"])
        await self._send(message)

    def leave(self, status: int) -> None:
        """Give the place back, if that was not done yet."""
        if not self._inside:
            return
        self._inside = False
        self._gate.leave(self._kind)
        if self._number is not None:
            self._lateness.answered(self._number, status)
