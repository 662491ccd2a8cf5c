"""`/api/v1/cluster`, `/api/v1/rounds` and `/api/v1/plans`."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from headway.contract.decisions import ClusterView, PolicyRequest, RoundView
from headway.contract.forecasts import PlanView
from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.spec import JobSpec
from service.api.access import Caller, Reach, needs
from service.api.context import Context, Cursor, Limit
from service.api.render import as_json, as_page
from service.usecases.cluster import choose_policy, view_cluster
from service.usecases.forecasts import plan_job

log = structlog.get_logger()
router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/cluster", operation_id="get_cluster", response_model=ClusterView, **needs(Role.VIEWER))
async def get_cluster(context: Context, caller: Caller) -> Response:
    """Slots by kind, the caller's jobs by state, the policy, and the policies that there are."""
    async with context.transactions.begin() as tx:
        return as_json(await view_cluster(tx, context.usd_per_slot_h, seen=caller.projects()))


@router.put(
    "/cluster",
    operation_id="set_policy",
    response_model=ClusterView,
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def set_policy(request: Request, context: Context, wanted: PolicyRequest) -> Response:
    """Follow another policy, or the same with other parameters, from the next round on."""
    async with context.transactions.begin() as tx:
        setting = await choose_policy(tx, wanted, context.now())
        view = await view_cluster(tx, context.usd_per_slot_h, seen=None)
    log.info(
        "policy_chosen",
        policy=setting.name,
        parameters=dict(setting.parameters),
        request_id=request.scope.get("request_id"),
    )
    return as_json(view)


@router.post("/plans", operation_id="plan_job", response_model=PlanView, **needs(Role.VIEWER))
async def plan_of_job(context: Context, caller: Caller, spec: JobSpec) -> Response:
    """What a job would take if it was submitted: each size with time, cost and how sure that is. Nothing is stored."""
    caller.require(Role.VIEWER, spec.project)
    async with context.transactions.begin() as tx:
        plan = await plan_job(tx, spec, usd_per_slot_h=context.usd_per_slot_h, now=context.now())
    return as_json(plan)


@router.get("/rounds", operation_id="list_rounds", response_model=Page[RoundView], **needs(Role.VIEWER))
async def list_rounds(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Rounds that changed something and the latest one, newest first; changes of jobs in others' projects are counted only."""
    async with context.transactions.begin() as tx:
        page = await tx.decision_queries.rounds(limit=limit, cursor=cursor, seen=caller.projects())
    return as_page(request, page)


@router.get("/rounds/{round_id}", operation_id="get_round", response_model=RoundView, **needs(Role.VIEWER))
async def get_round(context: Context, caller: Caller, round_id: str) -> Response:
    """One round by its id, or the `latest`; changes of jobs in others' projects are counted only."""
    async with context.transactions.begin() as tx:
        return as_json(await tx.decision_queries.round(round_id, seen=caller.projects()))
