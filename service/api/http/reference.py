"""API description at `/openapi.json`, with the pages `/docs` and `/redoc`. Every file comes from this host."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

_URL: Final = "/openapi.json"
_ASSETS: Final = "/static-offline-docs"
_ICON: Final = "/static/icon.svg"
_REDOC: Final = "redoc.standalone.js"
_LOGO: Final = b"https://cdn.redoc.ly/redoc/logo-mini.svg"
"""Image that ReDoc would load from the internet whatever its options."""
_NOTHING: Final = b"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"
_SHOWN: Final = {
    "displayRequestDuration": True,
    "filter": True,
    "docExpansion": "none",  # about a hundred routes: show only their groups
    "defaultModelsExpandDepth": -1,
    "validatorUrl": None,  # no outside validator
}
"""Options of Swagger UI."""


class ApiDescription:
    """Cached API description as bytes.

    Its generation takes a second. It runs once, on first use, and in a thread, so that it does not delay
    heartbeats and other work of the event loop.

    Args:
        make: returns the document.
    """

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._made: asyncio.Task[tuple[bytes, str]] | None = None

    async def served(self) -> tuple[bytes, str]:
        """Return the description as bytes, and its entity tag."""
        if self._made is None:
            self._made = asyncio.create_task(asyncio.to_thread(self._bytes))
            self._made.add_done_callback(self._forget_failure)
        return await asyncio.shield(self._made)  # a client that disconnects does not cancel it for the others

    def _bytes(self) -> tuple[bytes, str]:
        text = json.dumps(self._make(), ensure_ascii=False, separators=(",", ":")).encode()
        return text, f'"{hashlib.sha256(text).hexdigest()[:32]}"'

    def _forget_failure(self, made: asyncio.Task[tuple[bytes, str]]) -> None:
        if made.cancelled() or made.exception() is not None:
            self._made = None


def install_reference(app: FastAPI, description: ApiDescription) -> None:
    """Install the routes of the description, its two pages and their assets."""
    assets = files("fastapi_offline") / "static"

    @app.get(f"{_ASSETS}/{_REDOC}", include_in_schema=False)
    def redoc_script() -> Response:
        script = (assets / _REDOC).read_bytes().replace(_LOGO, _NOTHING)
        return Response(
            script, media_type="text/javascript", headers={"Cache-Control": "public, max-age=3600"}
        )

    app.mount(_ASSETS, StaticFiles(directory=str(assets)))  # after the route, which must match first

    @app.get(_URL, include_in_schema=False)
    async def openapi(request: Request) -> Response:
        text, tag = await description.served()
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type="application/json", headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=_URL,
            title=f"{app.title}: try the API",
            swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css",
            swagger_favicon_url=_ICON,
            swagger_ui_parameters=_SHOWN,
        )

    @app.get("/redoc", include_in_schema=False)
    async def redoc() -> HTMLResponse:
        return get_redoc_html(
            openapi_url=_URL,
            title=f"{app.title}: the API",
            redoc_js_url=f"{_ASSETS}/{_REDOC}",
            with_google_fonts=False,
            redoc_favicon_url=_ICON,
        )
