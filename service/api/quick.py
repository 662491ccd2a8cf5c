"""Reports as most agents send them most of the time, answered before anything is routed.

Thousands come every few seconds, and each of them all alike: finding the route, its dependencies and the model of its answer
takes several times as long as the report itself. Whatever is out of the ordinary goes the way of every other request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.contract.agents import ReportReply, ReportRequest
from service.domain.errors import HeadwayServiceError
from service.usecases.heartbeat import Heartbeats
from service.usecases.join import digest_token
from service.usecases.training import quick_news_of

_REPORT = re.compile(r"/api/v1/agents/([0-9a-z]{1,64})/reports")


class QuickReports:
    """Takes in reports without unusual news."""

    def __init__(self, app: ASGIApp, heartbeats: Heartbeats, lease_s: float) -> None:
        self._app = app
        self._heartbeats = heartbeats
        self._lease_s = lease_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the report, or pass the request on as it came."""
        reports = scope["type"] == "http" and scope["method"] == "POST"
        path = _REPORT.fullmatch(scope["path"]) if reports else None
        if path is None:
            await self._app(scope, receive, send)
            return
        came: list[Message] = []
        while not came or came[-1].get("more_body", False):
            came.append(await receive())
        if await self._take(path[1], scope, b"".join(one.get("body", b"") for one in came)):
            reply = ReportReply(lease_s=self._lease_s, report_every_s=self._heartbeats.slower_s)
            body = reply.model_dump_json(by_alias=True).encode()
            length = str(len(body)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await self._app(scope, _again(came, receive), send)

    async def _take(self, node_id: str, scope: Scope, body: bytes) -> bool:
        """Whether there was a report in it that could be taken in like this. Who says what was wrong is the route."""
        try:
            report = ReportRequest.model_validate_json(body)
            quick = quick_news_of(report, node_id, digest_token(_token(scope)))
            return quick is not None and await self._heartbeats.take(quick)
        except (ValidationError, HeadwayServiceError):
            return False


def _token(scope: Scope) -> str:
    """The bearer token that was shown; empty without one."""
    shown = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, token = shown.decode("latin-1").partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _again(came: Sequence[Message], receive: Receive) -> Receive:
    """What has come, from the beginning, and then whatever comes next."""
    left = list(came)

    async def next_one() -> Message:
        return left.pop(0) if left else await receive()

    return next_one
