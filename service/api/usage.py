"""`/api/v1/usage`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.money import GroupBy, LeaseBill, UsageView
from headway.contract.spec import NAME_PATTERN
from service.api.access import Caller, Reach, needs
from service.api.context import Context
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.usecases.usage import machine_bills, view_usage

router = APIRouter(
    prefix="/api/v1/usage",
    tags=["money"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Since = Annotated[
    datetime | None, Query(alias="from", description="Cut to its hour; none: the beginning of the month")
]
Until = Annotated[datetime | None, Query(alias="to", description="None: now")]


@router.get("", operation_id="get_usage", response_model=UsageView, **needs(Role.VIEWER))
async def get_usage(
    context: Context,
    caller: Caller,
    since: Since = None,
    until: Until = None,
    group_by: GroupBy = GroupBy.PROJECT,
    project: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
) -> Response:
    """Dollars and slot-hours by group and in all, with what was useful, resizing, lost and idle: of the caller's projects, and
    of everything for those who see all of them.
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
    """The leases of rented machines that were billed in this time, each whole: what is paid for, and what was charged."""
    async with context.transactions.begin() as tx:
        bills = await machine_bills(tx, since=since, until=until, now=context.now())
    return as_json(Page[LeaseBill](items=bills))
