"""Refusal of text that PostgreSQL cannot store, NUL characters and lone surrogates, and of bodies with too many values."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.problems import service_error
from service.domain.shared.errors import InvalidField, TooLarge

_SUSPECT: Final = re.compile(rb"\\u(?:0000|d[89a-f])|\x00|%00|\xed[\xa0-\xbf]", re.IGNORECASE)
"""Bytes that a body with such text has. Others may have them, too."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
MOST_VALUES: Final = 20_000
"""Values in a body of JSON. Explaining what is wrong with each of 60,000 fields would hold up all other requests for a second."""
_OF_AGENTS: Final = "/api/v1/agents"
"""Reports of agents, whose text is checked message by message, because one bad one must not hold up the others."""


class StorableText:
    """Middleware that answers 422 to a path, a query, a header or a body with text that cannot be stored.

    It answers 413 to a body with more than `MOST_VALUES` values.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not scope["path"].startswith("/api/") and (
            "\x00" in scope["path"] or _has_nul(scope["query_string"])
        ):
            scope = _for_a_page(scope)
        try:
            where = _place_in_head(scope)
            if where is None and _is_checked(scope):
                messages = await _read(receive)
                body = b"".join(message.get("body", b"") for message in messages)
                is_suspect = _SUSPECT.search(body) is not None or body.count(b",") > MOST_VALUES
                where = _place_in_body(body) if is_suspect else None
                receive = _again(messages, receive)
        except TooLarge as excess:
            await service_error(Request(scope), excess)(scope, receive, send)
            return
        if where is None:
            await self._app(scope, receive, send)
            return
        error = InvalidField(
            where, "text may have neither NUL characters nor lone surrogates; leave them out"
        )
        await service_error(Request(scope), error)(scope, receive, send)


def _has_nul(quoted: bytes) -> bool:
    return b"%00" in quoted or b"\x00" in quoted


def _for_a_page(scope: Scope) -> Scope:
    """Return the request with a mark in place of NUL characters, so that the page itself says what is wrong."""
    query = scope["query_string"].replace(b"\x00", b"%00").replace(b"%00", b"%EF%BF%BD")
    return {**scope, "path": scope["path"].replace("\x00", "\ufffd"), "query_string": query}


def _place_in_head(scope: Scope) -> str | None:
    """Return the part of a request before its body that cannot be stored; None if all can."""
    if "\x00" in scope["path"]:
        return "path"
    if _has_nul(scope["query_string"]):
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        at = next((name for name, value in pairs if "\x00" in name + value), "")
        return at.replace("\x00", "") or "query"
    bad = [name for name, value in scope["headers"] if b"\x00" in value]
    return bad[0].decode("latin-1") if bad else None


def _is_checked(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    typed = kind.endswith(b"json") or kind == b"application/x-www-form-urlencoded"
    return typed and not scope["path"].startswith(_OF_AGENTS)


async def _read(receive: Receive) -> list[Message]:
    """Return all messages of a body. `RequestLimits` bounds their size."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    """Return a channel that gives the messages once more, and then those that follow."""
    rest = iter(messages)

    async def give() -> Message:
        message = next(rest, None)
        return await receive() if message is None else message

    return give


def _place_in_body(body: bytes) -> str | None:
    """Return the field of a body that cannot be stored; None if all can, or the body is not JSON.

    Raises TooLarge if it has more than `MOST_VALUES` values. A form's percent escapes cannot be surrogates, since it is decoded as UTF-8.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "body" if b"\x00" in unquote_to_bytes(body) else None
    return _place_in(value, "body")


def _place_in(value: Any, name: str) -> str | None:
    """Return the name of the first field, by depth, whose text cannot be stored."""
    waiting = [(name, value)]
    seen = 0
    while waiting:
        at, one = waiting.pop()
        seen += 1
        if seen + len(waiting) > MOST_VALUES:
            raise TooLarge(f"a body may have {MOST_VALUES:,} values at most; send fewer")
        if isinstance(one, str) and not _can_store(one):
            return at
        if isinstance(one, dict):
            if not all(map(_can_store, one)):
                return at
            waiting += [(key if at == "body" else f"{at}.{key}", inner) for key, inner in one.items()]
        elif isinstance(one, list):
            waiting += [(f"{at}.{number}", inner) for number, inner in enumerate(one)]
    return None


def _can_store(text: str) -> bool:
    return _UNSTORABLE.search(text) is None
