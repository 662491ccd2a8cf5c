"""Limits of each client: bytes of a body, and requests per second.

Every accepted token has its own bucket, so that no bearer can starve another. Agents have a smaller one, and
the size of their reports counts too. Requests without a token, or with a wrong one, count by address.

A token that is new to this process, such as after its start, passes as long as its address has no debt. It
costs the address only if it is wrong. So a thousand agents behind one address can return at once, and
guessing tokens is slow.

Refusals here do not count in `pressure`: a flooding agent makes no report of other agents late.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.addresses import Networks, client_address
from service.api.http.auditing import PRINCIPAL
from service.api.http.problems import service_error
from service.api.http.sessions import SESSION_COOKIES
from service.domain.identity.rates import Bucket, Rate
from service.domain.shared.errors import TooBusy, TooLarge

JSON_BYTES: Final = 1 << 20
REPORT_BYTES: Final = 16 << 20
BUNDLE_SLACK_BYTES: Final = 1 << 16
"""Bytes above the limit of bundles that are still read.

A bundle slightly too large gets an explanatory error from its route. This limit is for larger bodies.
"""
AT_ONCE: Final = 4
"""Concurrent requests of one agent. More would only wait for each other."""
_REMEMBERED: Final = 50_000
_BYTES_PER_REQUEST: Final = 64 << 10
"""Bytes of a report that count like one request."""
_WRONG_TOKEN_COST: Final = 5.0
_HANG_UP: Final = {"Connection": "close"}
"""Header that closes the connection, so that the rest of an unwanted body is not awaited."""
Key = TypeVar("Key", bound=Hashable)
_FREE: Final = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a request: its reason, the wait, and the permitted burst."""

    why: str
    wait_s: float
    limit: float


class Rates:
    """Request rates of tokens and addresses.

    Args:
        per_s: average requests per second of a token; its burst is five seconds' worth.
        clock_s: a monotonic clock, in seconds.
    """

    def __init__(self, per_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.of_token = Rate(per_s, 5 * per_s)
        self.of_agent = Rate(per_s / 4, 5 * per_s / 4)
        self.of_address = Rate(per_s / 10, per_s / 2)
        self._clock_s = clock_s
        self._tokens: OrderedDict[bytes, Bucket] = OrderedDict()
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._inside: Counter[bytes] = Counter()

    def enter(self, token: bytes | None, address: str, *, agent: bool) -> Refusal | None:
        """Admit a request (None), or return the refusal.

        The caller must call `answered` for each admitted request.
        """
        now_s = self._clock_s()
        bucket = None if token is None else self._tokens.get(token)
        if token is not None and bucket is not None:
            self._tokens.move_to_end(token)
            rate = self.of_agent if agent else self.of_token
            wait_s = bucket.take(rate, now_s)
        else:
            rate = self.of_address
            wait_s = self._address(address, now_s).take(rate, now_s, cost=1.0 if token is None else 0.0)
        if wait_s > 0.0:
            return Refusal(
                "this client sends more requests than the rate limit allows; wait, and send fewer",
                wait_s,
                rate.burst,
            )
        if agent and token is not None:
            if self._inside[token] >= AT_ONCE:
                return Refusal(
                    "this agent has too many requests in progress; send fewer at a time", 1.0, AT_ONCE
                )
            self._inside[token] += 1
        return None

    def answered(
        self,
        token: bytes | None,
        address: str,
        *,
        agent: bool,
        known: bool,
        refused: bool,
        received_bytes: int,
    ) -> None:
        """Record the end of an admitted request.

        `known` says that its token was accepted, `refused` that it was rejected.
        """
        now_s = self._clock_s()
        if token is None:
            return
        if agent:
            self._inside[token] -= 1
            if self._inside[token] <= 0:
                del self._inside[token]
        if refused:
            self._tokens.pop(token, None)
            self._address(address, now_s).charge(self.of_address, now_s, _WRONG_TOKEN_COST)
            return
        if not known and token not in self._tokens:
            self._address(address, now_s).charge(self.of_address, now_s, 1.0)  # the token was never checked
            return
        bucket = _bucket(self._tokens, token, self.of_agent if agent else self.of_token, now_s)
        if agent:
            bucket.charge(self.of_agent, now_s, received_bytes / _BYTES_PER_REQUEST)

    def _address(self, address: str, now_s: float) -> Bucket:
        return _bucket(self._addresses, address, self.of_address, now_s)


def _bucket(buckets: OrderedDict[Key, Bucket], key: Key, rate: Rate, now_s: float) -> Bucket:
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = Bucket(rate.burst, now_s)
        if len(buckets) > _REMEMBERED:
            buckets.popitem(last=False)
    else:
        buckets.move_to_end(key)
    return bucket


class RequestLimits:
    """Middleware that refuses excessive requests before any work is done for them."""

    def __init__(
        self, app: ASGIApp, *, max_bundle_bytes: int, rates: Rates | None, trusted_proxies: Networks = ()
    ) -> None:
        self._app = app
        self._proxies = trusted_proxies
        self._bundle_bytes = max_bundle_bytes + BUNDLE_SLACK_BYTES
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413 or 429."""
        if scope["type"] != "http" or scope["path"] in _FREE:
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        is_bundle = path.startswith("/api/v1/bundles")
        of_agents = path.startswith("/api/v1/agents")
        # Many agents can join with one join token at once. They count as many clients, not as one.
        agent = of_agents and path != "/api/v1/agents"
        limit_bytes = self._bundle_bytes if is_bundle else REPORT_BYTES if of_agents else JSON_BYTES
        token, length = _token_and_length(scope)
        body = _Body(receive, limit_bytes)
        if length > limit_bytes:
            response = service_error(Request(scope), too_large(limit_bytes))
            response.headers.update(_HANG_UP)
            await response(scope, receive, send)
        elif self._rates is None:
            await self._app(scope, body.receive, send)
        else:
            await self._rate_limited(self._rates, scope, body, send, token, agent=agent)

    async def _rate_limited(
        self, rates: Rates, scope: Scope, body: _Body, send: Send, token: bytes | None, *, agent: bool
    ) -> None:
        address = client_address(scope, self._proxies)
        refusal = rates.enter(token, address, agent=agent)
        if refusal is not None:
            await _too_many_requests(scope, refusal)(scope, body.receive, send)
            return
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, body.receive, send_and_note)
        finally:
            rates.answered(
                token,
                address,
                agent=agent,
                # The routes of agents check their tokens themselves. All other routes set PRINCIPAL.
                known=0 < status < 300 if scope["path"].startswith("/api/v1/agents") else PRINCIPAL in scope,
                refused=status == 401,
                received_bytes=body.received,
            )


def _too_many_requests(scope: Scope, refusal: Refusal) -> Response:
    """Return the 429 answer of a refused request."""
    response = service_error(Request(scope), TooBusy(refusal.why, refusal.wait_s))
    response.headers["RateLimit-Limit"] = str(round(refusal.limit))
    response.headers["RateLimit-Remaining"] = "0"
    response.headers["RateLimit-Reset"] = str(max(1, math.ceil(refusal.wait_s)))
    return response


def too_large(limit_bytes: int) -> TooLarge:
    """Return the error for a body above its limit."""
    return TooLarge(f"a request to this address may have {limit_bytes} bytes at most; send less, or in parts")


def _token_and_length(scope: Scope) -> tuple[bytes | None, int]:
    """Return the digest of the request's token or session, and its declared body length."""
    token, length = None, 0
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            token = value[7:].strip()
        elif name == b"cookie" and token is None:
            token = _session(value)
        elif name == b"content-length":
            length = int(value) if value.isdigit() else 0
    return None if token is None else hashlib.sha256(token).digest(), length


def _session(cookies: bytes) -> bytes | None:
    parsed = cookie_parser(cookies.decode("latin-1"))
    session = next((parsed[name] for name in SESSION_COOKIES if parsed.get(name)), None)
    return None if session is None else session.encode("latin-1", "replace")


class _Body:
    """Body of a request, limited in size. The server limits its duration."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self.received = 0

    async def receive(self) -> Message:
        """Return the next message. Raises HTTPException with status 413 above the limit."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            if self.received > self._limit_bytes:
                raise HTTPException(413, too_large(self._limit_bytes).message, _HANG_UP)
        return message
