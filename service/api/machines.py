"""`/api/v1/machines`: what is rented, and what it costs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.machines import MachineView
from service.api.access import Caller, needs
from service.api.context import Context, Cursor, Limit
from service.api.problems import PROBLEM
from service.api.render import as_page
from service.usecases.machine_views import seen_machines

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
    open: Annotated[bool, Query(description="only those that are, or may still be, paid for")] = False,  # noqa: A002, FBT002
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Machines that were rented, newest first: why, for how much, and what became of them. Messages, which name jobs, are for those
    who see all projects.
    """
    async with context.transactions.begin() as tx:
        page = await tx.machines.views(context.now(), open_only=open, limit=limit, cursor=cursor)
    return as_page(request, seen_machines(page, caller.projects()))
