"""Security headers of answers: own scripts only, no foreign frames, no guessed types, no cached private data."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DOCS: Final = frozenset({"/docs", "/redoc"})
"""FastAPI's pages, which contain inline scripts."""
_EVERYWHERE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"accelerometer=(), camera=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), payment=(), usb=()",
    ),
)
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000; includeSubDomains")
_NO_STORE: Final = (b"cache-control", b"no-store")
_OF_DATA: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_OF_PAGES: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    b"manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_OF_DOCS: Final = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' "
    "data:; connect-src 'self'; worker-src blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_SCRIPT: Final = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


class SecurityHeaders:
    """Middleware that adds security headers to every answer.

    Args:
        app: the application.
        secure: True if browsers reach the service by TLS. The answers then tell them to use only TLS.
    """

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        self._app = app
        self._everywhere = (*_EVERYWHERE, _HSTS) if secure else _EVERYWHERE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        known = any(name in {b"authorization", b"cookie"} for name, _ in scope["headers"])
        if scope["path"] in _DOCS:
            send = _with_hashes(send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._of(message["headers"], known)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _of(self, given: list[tuple[bytes, bytes]], known: bool) -> list[tuple[bytes, bytes]]:  # noqa: FBT001
        """Return the headers of an answer.

        An answer to an authenticated client must not be cached, unless it sets `Cache-Control` itself.
        """
        headers = [*given, *self._everywhere]
        is_page, may_keep = False, False
        for name, value in given:
            if name == b"content-type":
                is_page = value.startswith(b"text/html")
            elif name == b"cache-control":
                may_keep = True
        headers.append((b"content-security-policy", _OF_PAGES if is_page else _OF_DATA))
        if known and not may_keep:
            headers.append(_NO_STORE)
        return headers


def _with_hashes(send: Send) -> Send:
    """Return a `send` that gives a page of FastAPI a policy with the digests of its scripts."""
    start: Message = {}
    body = bytearray()

    async def send_page(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        body.extend(message.get("body", b""))
        if message.get("more_body", False):
            return
        if (b"content-type", b"text/html; charset=utf-8") in start["headers"]:
            rest = [one for one in start["headers"] if one[0] != b"content-security-policy"]
            start["headers"] = [*rest, (b"content-security-policy", policy_of_docs(bytes(body)))]
        await send(start)
        await send({"type": "http.response.body", "body": bytes(body)})

    return send_page


def policy_of_docs(page: bytes) -> bytes:
    """Return the policy of a page with inline scripts, which allows these by their digests."""
    digests = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(page))
    return _OF_DOCS.format(hashes=" ".join(f"'sha256-{digest}'" for digest in digests)).encode()
