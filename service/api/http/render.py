"""Responses: models as JSON without a second validation, pages with links, server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from headway.contract.views.jobs import Page


def as_json(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with the model as JSON. The service built the model, so it needs no validation."""
    return Response(
        model.model_dump_json(by_alias=True), status, headers=headers, media_type="application/json"
    )


def as_page(request: Request, page: Page[Any]) -> Response:
    """Return a response with a page, with `Link: rel=next` if there is another page."""
    headers = {}
    if page.next_cursor is not None:
        url = request.url.include_query_params(cursor=page.next_cursor)
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return as_json(page, headers=headers)


def wants_stream(request: Request) -> bool:
    """Return True if the client asked for server-sent events."""
    return "text/event-stream" in request.headers.get("accept", "")


def sse(event: str, data: str = "", event_id: str | None = None) -> str:
    """Return one server-sent event as text. `data` is one line (JSON)."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: {data}\n\n"


def as_stream(events: AsyncIterator[str]) -> Response:
    """Return a response with server-sent events that proxies do not buffer."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
