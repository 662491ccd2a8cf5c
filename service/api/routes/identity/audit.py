"""`/api/v1/audit`: the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import AwareDatetime

from headway.contract.views.identity import AuditView, Role
from headway.contract.views.jobs import Page
from service.api.http.access import Caller, ProjectName, needs
from service.api.http.context import Context, Cursor, Limit
from service.api.http.problems import PROBLEM
from service.api.http.render import as_page
from service.usecases.identity.audit import readable
from service.usecases.ports.audit import AuditFilter

router = APIRouter(
    prefix="/api/v1/audit", tags=["access"], responses={401: PROBLEM, 403: PROBLEM, 422: PROBLEM}
)
Moment = Annotated[AwareDatetime | None, Query(description="A time with a time zone")]


@router.get("", operation_id="list_audit", response_model=Page[AuditView], **needs(Role.ADMIN))
async def list_audit(
    request: Request,
    context: Context,
    caller: Caller,
    project: ProjectName = None,
    actor: Annotated[str | None, Query(max_length=254)] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List changes, both made and refused, newest first. Admins of projects see those of their projects."""
    wanted = AuditFilter(projects=readable(caller, project), actor=actor, since=since, until=until)
    async with context.transactions.begin() as tx:
        page = await tx.audit.page(wanted, limit=limit, cursor=cursor)
    return as_page(request, page)
