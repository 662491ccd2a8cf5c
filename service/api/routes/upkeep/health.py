"""Liveness, readiness and version of the process."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from service.api.http.context import Context
from service.api.http.problems import problem_response

router = APIRouter(tags=["health"])
VERSION = version("headway")


@router.get("/livez", operation_id="livez")
async def livez() -> Response:
    """Report that the process runs."""
    return JSONResponse({"status": "alive"})


@router.get("/readyz", operation_id="readyz")
async def readyz(request: Request, context: Context) -> Response:
    """Report that the process can serve: database, schema and Redis work.

    Answers 503 with the problems otherwise.
    """
    problems = await context.readiness.problems()
    if problems:
        return problem_response(
            request, 503, "unavailable", "; ".join(problems), headers={"Retry-After": "2"}
        )
    return JSONResponse({"status": "ready"})


@router.get("/version", operation_id="version")
async def get_version() -> Response:
    """Return the version of the service."""
    return JSONResponse({"version": VERSION})
