"""`/api/v1/budgets`: budgets and their use."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.money import BudgetRequest, BudgetView
from service.api.http.access import Caller, needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.domain.shared.errors import InvalidField
from service.usecases.money.budgets import delete_budget, get_budget, list_budgets, put_budget

log = structlog.get_logger()

router = APIRouter(
    prefix="/api/v1/budgets",
    tags=["money"],
    responses={401: PROBLEM, 404: PROBLEM, 412: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
IfMatch = Annotated[str | None, Header(description="ETag of the budget version to change")]


@router.get("", operation_id="list_budgets", response_model=Page[BudgetView], **needs(Role.VIEWER))
async def get_budgets(context: Context, caller: Caller) -> Response:
    """List the budgets of the caller's projects with their use, by name.

    Callers who see all projects also get the budgets of the cluster.
    """
    async with context.transactions.begin() as tx:
        found = await list_budgets(tx, context.now(), seen=caller.projects())
    return as_json(Page[BudgetView](items=found))


@router.get("/{name}", operation_id="get_budget", response_model=BudgetView, **needs(Role.VIEWER))
async def get_one(context: Context, caller: Caller, name: Name) -> Response:
    """Return a budget with its use, and an ETag."""
    async with context.transactions.begin() as tx:
        return _tagged(await get_budget(tx, name, context.now(), seen=caller.projects()))


@router.put("/{name}", operation_id="set_budget", response_model=BudgetView, **needs(Role.ADMIN))
async def put_one(
    context: Context, caller: Caller, name: Name, wanted: BudgetRequest, if_match: IfMatch = None
) -> Response:
    """Set a budget, from the next scheduling round on.

    A repeated request changes nothing. With `If-Match`, the request fails if the budget has changed since.
    """
    now = context.now()
    async with context.transactions.begin() as tx:
        created = await put_budget(tx, caller, name, wanted, if_version=_version(if_match), now=now)
        view = await get_budget(tx, name, now, seen=caller.projects())
    log.info("budget_set", budget=name, kind=view.kind, usd=view.usd, hard=view.hard, project=view.project)
    return _tagged(view, 201 if created else 200)


@router.delete("/{name}", operation_id="delete_budget", status_code=204, **needs(Role.ADMIN))
async def delete_one(context: Context, caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Delete a budget, unless `If-Match` names another version."""
    async with context.transactions.begin() as tx:
        await delete_budget(tx, caller, name, if_version=_version(if_match), now=context.now())
    log.info("budget_removed", budget=name)
    return Response(status_code=204)


def _tagged(view: BudgetView, status: int = 200) -> Response:
    return as_json(view, status, {"ETag": f'"{view.version}"'})


def _version(if_match: str | None) -> int | None:
    """Return the version in an ETag, or None without one or with `*` (any version)."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isdecimal() or len(text) > 18:
        raise InvalidField(
            "If-Match", "this is not an ETag of a budget; get the budget again and use its ETag"
        )
    return int(text)
