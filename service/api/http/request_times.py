"""Durations of requests, by route and class of status."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
REPORTS = "/api/v1/agents/{node_id}/reports"
"""Route label of reports, which are answered before routing."""
_NO_ROUTE = "none"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestTimes:
    """Middleware that observes `headway_http_request_duration_seconds`.

    The duration ends with the start of the answer, because the rest depends on the reader. The label is the
    route's template, so the number of labels is bounded.
    """

    def __init__(
        self, app: ASGIApp, registry: CollectorRegistry, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app = app
        self._clock_s = clock_s
        self._seconds = Histogram(
            "headway_http_request_duration_seconds",
            "Time from a request to the start of its answer, by route template and class of status.",
            ("method", "route", "status"),
            buckets=_BUCKETS_S,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and observe the start of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = self._clock_s()
        observed = False

        async def send_and_observe(message: Message) -> None:
            nonlocal observed
            await send(message)
            if message["type"] == "http.response.start" and not observed:
                observed = True
                self._observe(scope, message["status"], self._clock_s() - began_s)

        try:
            await self._app(scope, receive, send_and_observe)
        finally:
            if not observed:  # it failed, or its client disconnected
                self._observe(scope, 500, self._clock_s() - began_s)

    def _observe(self, scope: Scope, status: int, took_s: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds.labels(method, _route(scope), f"{status // 100}xx").observe(took_s)


def _route(scope: Scope) -> str:
    template = getattr(scope.get("route"), "path", None)
    if template is not None:
        return str(template)
    path: str = scope["path"]
    # The fast path answers reports without a route.
    return REPORTS if path.startswith("/api/v1/agents/") and path.endswith("/reports") else _NO_ROUTE
