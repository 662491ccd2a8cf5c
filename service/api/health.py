"""Is the process alive, is it ready, which version is it."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from service.api.context import Context
from service.api.problems import problem_response

router = APIRouter(tags=["health"])
VERSION = version("headway")


@router.get("/livez", operation_id="livez")
async def livez() -> Response:
    """The process runs."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz", operation_id="readyz")
async def readyz(request: Request, context: Context) -> Response:
    """The process can serve: database, schema and Redis are well."""
    problems = await context.readiness.problems()
    if problems:
        return problem_response(
            request, 503, "unavailable", "; ".join(problems), headers={"Retry-After": "2"}
        )
    return JSONResponse({"status": "ready"})


@router.get("/version", operation_id="version")
async def get_version() -> Response:
    """The version of the service."""
    return JSONResponse({"version": VERSION})
