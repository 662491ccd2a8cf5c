"""`/api/v1/graph`: chains of jobs that start after each other."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.views.identity import Role
from headway.contract.views.jobs import GraphView
from service.api.http.access import Caller, needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json

router = APIRouter(
    prefix="/api/v1/graph",
    tags=["jobs"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.get("", operation_id="job_graph", response_model=GraphView, **needs(Role.VIEWER))
async def job_graph(
    context: Context, caller: Caller, job: str | None = None, project: str | None = None
) -> Response:
    """Return the chain of a job, given by id or name, or all chains with a job that waits, in the caller's projects."""
    if project is not None:
        caller.require(Role.VIEWER, project)
    seen = caller.projects() if project is None else frozenset({project})
    async with context.transactions.begin() as tx:
        job_id = None if job is None else (await tx.job_queries.find(job, seen)).id
        return as_json(await tx.chains.graph(job_id, seen))
