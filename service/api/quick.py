"""Reports, answered before anything is routed.

Thousands come every few seconds, and each of them all alike: finding the route, its dependencies and the model of its answer
takes several times as long as the report itself. What cannot be read goes the way of every other request, to be told why.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.contract.agents import ReportReply, ReportRequest
from service.api.problems import service_error
from service.domain.errors import HeadwayServiceError
from service.usecases.heartbeat import Heartbeats
from service.usecases.join import digest_token
from service.usecases.training import quick_news_of

_REPORT = re.compile(r"/api/v1/agents/([0-9a-z]{1,64})/reports")

TakeIn = Callable[[str, str, ReportRequest], Awaitable[ReportReply]]
"""Takes in a report with any news: the node's id, the digest of the token that was shown, the report."""


class QuickReports:
    """Takes in reports: those without unusual news together with others, and each other one by `take_in`."""

    def __init__(self, app: ASGIApp, heartbeats: Heartbeats, lease_s: float, take_in: TakeIn) -> None:
        self._app = app
        self._heartbeats = heartbeats
        self._lease_s = lease_s
        self._take_in = take_in

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
        try:
            report = ReportRequest.model_validate_json(b"".join(one.get("body", b"") for one in came))
        except ValidationError:
            await self._app(scope, _again(came, receive), send)
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
        quick = quick_news_of(report, node_id, token_sha256)
        if quick is not None and await self._heartbeats.take(quick):
            return ReportReply(lease_s=self._lease_s, report_every_s=self._heartbeats.slower_s)
        return await self._take_in(node_id, token_sha256, report)


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
