"""`/api/v1/cluster`, `/api/v1/rounds` and `/api/v1/plans`: the scheduler and its decisions."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from headway.contract.spec import JobSpec
from headway.contract.views.decisions import ClusterView, PolicyRequest, RoundView
from headway.contract.views.forecasts import PlanView
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import Context, Cursor, Limit
from service.api.http.render import as_json, as_page
from service.usecases.jobs.forecasts import plan_job
from service.usecases.rounds.policy_choice import choose_policy, view_cluster

log = structlog.get_logger()
router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/cluster", operation_id="get_cluster", response_model=ClusterView, **needs(Role.VIEWER))
async def get_cluster(context: Context, caller: Caller) -> Response:
    """Return the slots by kind, the caller's jobs by state, the policy, and the available policies."""
    async with context.transactions.begin() as tx:
        return as_json(
            await view_cluster(tx, context.policies, context.usd_per_slot_h, seen=caller.projects())
        )


@router.put(
    "/cluster",
    operation_id="set_policy",
    response_model=ClusterView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def set_policy(request: Request, context: Context, wanted: PolicyRequest) -> Response:
    """Set another policy, or other parameters, from the next scheduling round on."""
    async with context.transactions.begin() as tx:
        setting = await choose_policy(tx, context.policies, wanted, context.now())
        view = await view_cluster(tx, context.policies, context.usd_per_slot_h, seen=None)
    log.info(
        "policy_chosen",
        policy=setting.name,
        parameters=dict(setting.parameters),
        request_id=request.scope.get("request_id"),
    )
    return as_json(view)


@router.post("/plans", operation_id="plan_job", response_model=PlanView, **needs(Role.VIEWER))
async def plan_of_job(context: Context, caller: Caller, spec: JobSpec) -> Response:
    """Return the predicted time, cost and certainty of a job at each size, as if it was submitted.

    Nothing is stored.
    """
    caller.require(Role.VIEWER, spec.project)
    async with context.transactions.begin() as tx:
        plan = await plan_job(tx, spec, usd_per_slot_h=context.usd_per_slot_h, now=context.now())
    return as_json(plan)


@router.get("/rounds", operation_id="list_rounds", response_model=Page[RoundView], **needs(Role.VIEWER))
async def list_rounds(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List scheduling rounds that changed something, and the latest one, newest first.

    Changes of jobs in projects that the caller does not see are only counted.
    """
    async with context.transactions.begin() as tx:
        page = await tx.round_queries.rounds(limit=limit, cursor=cursor, seen=caller.projects())
    return as_page(request, page)


@router.get("/rounds/{round_id}", operation_id="get_round", response_model=RoundView, **needs(Role.VIEWER))
async def get_round(context: Context, caller: Caller, round_id: str) -> Response:
    """Return a scheduling round by its id, or the `latest`.

    Changes of jobs in projects that the caller does not see are only counted.
    """
    async with context.transactions.begin() as tx:
        return as_json(await tx.round_queries.round(round_id, seen=caller.projects()))
