"""`/api/v1/simulations`: what-if simulations."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.simulations import SimulationRequest, SimulationView
from service.api.http.access import Caller, needs
from service.api.http.context import Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page
from service.usecases.simulations.simulations import ask

router = APIRouter(
    prefix="/api/v1/simulations",
    tags=["simulations"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("", operation_id="simulate", status_code=202, response_model=SimulationView, **needs(Role.USER))
async def simulate(
    context: Context, caller: Caller, request: SimulationRequest, idempotency_key: IdempotencyKey = None
) -> Response:
    """Simulate the cluster with changes. The result is available later at `Location`.

    It names only jobs of the caller's projects, and only callers who see these projects can read it.
    """
    now = context.now()
    asked = await ask(
        context.transactions,
        request,
        context.policies,
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
    """List simulations without their results, newest first."""
    async with context.transactions.begin() as tx:
        page = await tx.simulations.page(limit=limit, cursor=cursor, seen=caller.projects())
    return as_page(request, page)


@router.get(
    "/{simulation_id}", operation_id="get_simulation", response_model=SimulationView, **needs(Role.VIEWER)
)
async def get_simulation(context: Context, caller: Caller, simulation_id: str) -> Response:
    """Return a simulation, with its result once it has ended."""
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
    """Cancel a simulation. A simulation that has ended stays as it is."""
    async with context.transactions.begin() as tx:
        await tx.simulations.get(simulation_id, seen=caller.projects())
        await tx.simulations.cancel(simulation_id, context.now())
        return as_json(await tx.simulations.get(simulation_id, seen=caller.projects()), 202)
