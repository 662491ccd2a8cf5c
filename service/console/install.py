"""Installation of the pages in the application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from service.api.http.context import ApiContext
from service.api.http.routing import add_routes
from service.console import actions
from service.console import routes as pages
from service.console.failures import unknown_page
from service.console.page_context import PageContext
from service.console.templates import HERE


class _Assets(StaticFiles):
    """Static files. Browsers may cache a versioned address for ever, and a plain one for five minutes."""

    def __init__(self, version: str) -> None:
        super().__init__(directory=HERE / "static")
        self._version = version

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a static file with its cache headers."""
        first, _, rest = path.partition("/")
        versioned = first == self._version
        response = await super().get_response(rest if versioned else path, scope)
        response.headers["Cache-Control"] = f"public, max-age={31_536_000 if versioned else 300}"
        return response


def install_console(app: FastAPI, context: ApiContext) -> None:
    """Add the pages at `/`, and their style sheets and scripts."""
    console = PageContext(context)
    app.state.console = console
    app.add_exception_handler(HTTPException, unknown_page)
    app.mount("/static", _Assets(console.assets))
    add_routes(app, pages.router, actions.router)
