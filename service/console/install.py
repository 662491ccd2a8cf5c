"""Puts the pages into the application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from service.api.context import ApiContext
from service.console import actions, pages
from service.console.desk import Desk
from service.console.templates import HERE


class _Assets(StaticFiles):
    """Their address changes with them, so that browsers may keep them for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def install_console(app: FastAPI, context: ApiContext) -> None:
    """The pages at `/`, and their style sheets and scripts."""
    desk = Desk(context)
    app.state.desk = desk
    app.mount(f"/static/{desk.assets}", _Assets(directory=HERE / "static"))
    app.include_router(pages.router)
    app.include_router(actions.router)
