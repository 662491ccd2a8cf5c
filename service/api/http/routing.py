"""Routes of an application."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Add the routes of routers that say all of them themselves: paths, tags and dependencies.

    `include_router` would make the dependencies and models of every route anew for this application while its first
    request waits, which takes a fifth of a second.
    """
    for router in routers:
        app.router.routes.extend(router.routes)
