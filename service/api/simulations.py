"""`/api/v1/simulations`: what if."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.simulations import SimulationRequest, SimulationView
from service.api.access import Caller, needs
from service.api.context import Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.problems import PROBLEM
from service.api.render import as_json, as_page
from service.usecases.simulations import ask

router = APIRouter(
    prefix="/api/v1/simulations",
    tags=["simulations"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("", operation_id="simulate", status_code=202, response_model=SimulationView, **needs(Role.USER))
async def simulate(
    context: Context, caller: Caller, request: SimulationRequest, idempotency_key: IdempotencyKey = None
) -> Response:
    """Play through what would come of the cluster with changes. The answer is ready later, at `Location`. It names jobs of the
    caller's projects only, and is for those who see these.
    """
    now = context.now()
    asked = await ask(
        context.transactions,
        request,
        seen=caller.projects(),
        simulation_id=new_id("s", now),
        idempotency_key=idempotency_key,
        now=now,
    )
    headers = {"Location": f"/api/v1/simulations/{asked.view.id}"}
    return as_json(asked.view, 202 if asked.created else 200, headers)


@router.get("", operation_id="list_simulations", response_model=Page[SimulationView], **needs(Role.VIEWER))
async def list_simulations(
    request: Request, context: Context, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """Simulations without their results, newest first."""
    async with context.transactions.begin() as tx:
        page = await tx.simulations.page(limit=limit, cursor=cursor, seen=caller.projects())
    return as_page(request, page)


@router.get(
    "/{simulation_id}", operation_id="get_simulation", response_model=SimulationView, **needs(Role.VIEWER)
)
async def get_simulation(context: Context, caller: Caller, simulation_id: str) -> Response:
    """One simulation, with its result once there is one."""
    async with context.transactions.begin() as tx:
        return as_json(await tx.simulations.get(simulation_id, seen=caller.projects()))


@router.post(
    "/{simulation_id}/cancel",
    operation_id="cancel_simulation",
    status_code=202,
    response_model=SimulationView,
    **needs(Role.USER),
)
async def cancel_simulation(context: Context, caller: Caller, simulation_id: str) -> Response:
    """Have a simulation end without a result. One that has ended stays as it is."""
    async with context.transactions.begin() as tx:
        await tx.simulations.get(simulation_id, seen=caller.projects())
        await tx.simulations.cancel(simulation_id, context.now())
        return as_json(await tx.simulations.get(simulation_id, seen=caller.projects()), 202)
