"""Request ids, which appear in the answer, in problems, and in every log line about the request."""

from __future__ import annotations

import random
import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, unbind_contextvars

_GIVEN: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """Middleware that gives every request an id and returns it in `X-Request-Id`.

    A valid `X-Request-Id` of the client is used as it is.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        # The id only identifies requests and protects nothing, so a random number without a system call is
        # enough.
        request_id = given if _GIVEN.fullmatch(given) else b"%016x" % random.getrandbits(64)
        scope["request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        # One request processes a batch of reports of many agents, so its log lines carry no request id.
        if not scope["path"].endswith("/reports"):
            bind_contextvars(request_id=scope["request_id"])
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            unbind_contextvars("request_id", "job", "node")
