"""`/api/v1/machines`: rented machines and their costs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView
from service.api.http.access import Caller, needs
from service.api.http.context import Context, Cursor, Limit
from service.api.http.problems import PROBLEM
from service.api.http.render import as_page
from service.usecases.rental.views import seen_machines

router = APIRouter(
    prefix="/api/v1/machines",
    tags=["machines"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.get("", operation_id="list_machines", response_model=Page[MachineView], **needs(Role.VIEWER))
async def list_machines(
    request: Request,
    context: Context,
    caller: Caller,
    open: Annotated[bool, Query(description="Only machines that are, or may still be, paid for")] = False,  # noqa: A002, FBT002
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List rented machines, newest first, with reason, price and outcome.

    Messages name jobs, so only callers who see all projects get them.
    """
    async with context.transactions.begin() as tx:
        page = await tx.machines.views(context.now(), open_only=open, limit=limit, cursor=cursor)
    return as_page(request, seen_machines(page, caller.projects()))
