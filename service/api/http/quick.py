"""Fast path for reports, which are answered before routing.

Thousands of similar reports arrive every few seconds. Routing, dependencies and the response model would cost
several times as much as the report itself. An unreadable report takes the normal path, which explains the
error.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.contract.agents import ReportReply, ReportRequest
from service.api.http.problems import service_error
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.nodes.join import digest_token
from service.usecases.reports.heartbeat import Heartbeats
from service.usecases.reports.training import routine_report_of

_REPORT = re.compile(r"/api/v1/agents/([0-9a-z]{1,64})/reports")

TakeIn = Callable[[str, str, ReportRequest], Awaitable[ReportReply]]
"""Function that processes a report with any kind of content. Arguments: node id, token digest, report."""


class QuickReports:
    """Middleware that answers reports: plain ones in batches, all others one by one by `take_in`."""

    def __init__(self, app: ASGIApp, heartbeats: Heartbeats, lease_s: float, take_in: TakeIn) -> None:
        self._app = app
        self._heartbeats = heartbeats
        self._lease_s = lease_s
        self._take_in = take_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a report, or pass the request on unchanged."""
        reports = scope["type"] == "http" and scope["method"] == "POST"
        path = _REPORT.fullmatch(scope["path"]) if reports else None
        if path is None:
            await self._app(scope, receive, send)
            return
        received: list[Message] = []
        while not received or received[-1].get("more_body", False):
            received.append(await receive())
        try:
            report = ReportRequest.model_validate_json(b"".join(one.get("body", b"") for one in received))
        except ValidationError:
            await self._app(scope, _replaying(received, receive), send)
            return
        try:
            reply = await self._take(path[1], digest_token(_token(scope)), report)
        except HeadwayServiceError as error:
            await service_error(Request(scope), error)(scope, receive, send)
            return
        body = reply.model_dump_json(by_alias=True).encode()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _take(self, node_id: str, token_sha256: str, report: ReportRequest) -> ReportReply:
        quick = routine_report_of(report, node_id, token_sha256)
        if quick is not None and await self._heartbeats.take(quick):
            reach = self._heartbeats.links.of(node_id)
            return ReportReply(lease_s=self._lease_s, reach=reach, report_every_s=self._heartbeats.slower_s)
        return await self._take_in(node_id, token_sha256, report)


def _token(scope: Scope) -> str:
    """Return the request's bearer token; empty without one."""
    shown = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, token = shown.decode("latin-1").partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _replaying(received: Sequence[Message], receive: Receive) -> Receive:
    """Return a `receive` that repeats the received messages, then continues with new ones."""
    left = list(received)

    async def next_one() -> Message:
        return left.pop(0) if left else await receive()

    return next_one
