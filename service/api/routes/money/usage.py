"""`/api/v1/usage`: spending and slot-hours."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.money import GroupBy, LeaseBill, UsageView
from service.api.http.access import Caller, Reach, needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.money.usage import machine_bills, view_usage

router = APIRouter(
    prefix="/api/v1/usage",
    tags=["money"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Since = Annotated[
    datetime | None,
    Query(alias="from", description="Start, rounded down to the hour; by default the start of the month"),
]
Until = Annotated[datetime | None, Query(alias="to", description="End; by default now")]


@router.get("", operation_id="get_usage", response_model=UsageView, **needs(Role.VIEWER))
async def get_usage(
    context: Context,
    caller: Caller,
    since: Since = None,
    until: Until = None,
    group_by: GroupBy = GroupBy.PROJECT,
    project: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
) -> Response:
    """Return dollars and slot-hours by group and in total, split into useful, resize, lost, idle and unknown.

    The answer covers the caller's projects, or everything for callers who see all projects.
    """
    if project is not None:
        caller.require(Role.VIEWER, project)
    projects = caller.projects() if project is None else frozenset({project})
    async with context.transactions.begin() as tx:
        view = await view_usage(
            tx, since=since, until=until, by=group_by, projects=projects, now=context.now()
        )
    return as_json(view)


@router.get(
    "/machines",
    operation_id="get_machine_bills",
    response_model=Page[LeaseBill],
    **needs(Role.OPERATOR, Reach.EVERYWHERE),
)
async def get_machine_bills(context: Context, since: Since = None, until: Until = None) -> Response:
    """List the leases of rented machines billed in this period, each in full, with paid and charged amounts."""
    async with context.transactions.begin() as tx:
        bills = await machine_bills(tx, since=since, until=until, now=context.now())
    return as_json(Page[LeaseBill](items=bills))
