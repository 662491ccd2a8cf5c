"""`/api/v1/budgets`."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Path
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.jobs import Page
from headway.contract.money import BudgetRequest, BudgetView
from headway.contract.spec import NAME_PATTERN
from service.api.access import Caller, needs
from service.api.context import Context
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.domain.errors import InvalidField
from service.usecases.budgets import delete_budget, get_budget, list_budgets, put_budget

log = structlog.get_logger()

router = APIRouter(
    prefix="/api/v1/budgets",
    tags=["money"],
    responses={401: PROBLEM, 404: PROBLEM, 412: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
Name = Annotated[str, Path(pattern=NAME_PATTERN)]
IfMatch = Annotated[str | None, Header(description="The ETag of the budget that is to be changed")]


@router.get("", operation_id="list_budgets", response_model=Page[BudgetView], **needs(Role.VIEWER))
async def get_budgets(context: Context, caller: Caller) -> Response:
    """Every budget of the caller's projects and how it stands, by name; those of the cluster for those who see all projects."""
    async with context.transactions.begin() as tx:
        found = await list_budgets(tx, context.now(), seen=caller.projects())
    return as_json(Page[BudgetView](items=found))


@router.get("/{name}", operation_id="get_budget", response_model=BudgetView, **needs(Role.VIEWER))
async def get_one(context: Context, caller: Caller, name: Name) -> Response:
    """One budget and how it stands, with its ETag."""
    async with context.transactions.begin() as tx:
        return _tagged(await get_budget(tx, name, context.now(), seen=caller.projects()))


@router.put("/{name}", operation_id="set_budget", response_model=BudgetView, **needs(Role.ADMIN))
async def put_one(
    context: Context, caller: Caller, name: Name, wanted: BudgetRequest, if_match: IfMatch = None
) -> Response:
    """Set a budget; it holds from the next round on. The same once more changes nothing. With `If-Match` only if nobody has
    changed it meanwhile.
    """
    now = context.now()
    async with context.transactions.begin() as tx:
        created = await put_budget(tx, caller, name, wanted, if_version=_version(if_match), now=now)
        view = await get_budget(tx, name, now, seen=caller.projects())
    log.info("budget_set", budget=name, kind=view.kind, usd=view.usd, hard=view.hard, project=view.project)
    return _tagged(view, 201 if created else 200)


@router.delete("/{name}", operation_id="delete_budget", status_code=204, **needs(Role.ADMIN))
async def delete_one(context: Context, caller: Caller, name: Name, if_match: IfMatch = None) -> Response:
    """Remove a budget."""
    async with context.transactions.begin() as tx:
        await delete_budget(tx, caller, name, if_version=_version(if_match), now=context.now())
    log.info("budget_removed", budget=name)
    return Response(status_code=204)


def _tagged(view: BudgetView, status: int = 200) -> Response:
    return as_json(view, status, {"ETag": f'"{view.version}"'})


def _version(if_match: str | None) -> int | None:
    """The version in an ETag; None where there is none, or any (`*`) will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isdecimal() or len(text) > 18:
        raise InvalidField("If-Match", "not an ETag of a budget; look at the budget again")
    return int(text)
