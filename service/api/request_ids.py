"""An id for every request: in the answer, in problems, and in every line that is logged about it."""

from __future__ import annotations

import random
import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, unbind_contextvars

_GIVEN: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """Gives every request an id, the client's own if it sent one (`X-Request-Id`), and says it in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        # It tells requests apart and guards nothing: a random number that costs no system call will do.
        request_id = given if _GIVEN.fullmatch(given) else b"%016x" % random.getrandbits(64)
        scope["request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        # Reports of many agents are taken in together, by one of them.
        if not scope["path"].endswith("/reports"):
            bind_contextvars(request_id=scope["request_id"])
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            unbind_contextvars("request_id", "job", "node")
