"""`/api/v1/diagnosis`: problems of the service and its agents."""

from __future__ import annotations

import secrets
from contextlib import suppress
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.views.diagnosis import Check, DiagnosisView, Level
from headway.contract.views.identity import Role
from service.api.http.access import Reach, needs
from service.api.http.context import ApiContext, Context
from service.api.http.render import as_json
from service.api.routes.upkeep.health import VERSION
from service.domain.nodes.diagnosis import STANDSTILLS_SHOWN, diagnose, standing
from service.domain.shared.errors import Unavailable
from service.usecases.upkeep.diagnose import check_storage

router = APIRouter(prefix="/api/v1/diagnosis", tags=["health"])


@router.get(
    "", operation_id="diagnose", response_model=DiagnosisView, **needs(Role.OPERATOR, Reach.EVERYWHERE)
)
async def get_diagnosis(context: Context) -> Response:
    """Return the problems of the service and its agents, with effect and remedy.

    If a store does not answer, the route still works and reports that.
    """
    checks = [await _stores(context), await check_storage(context.storage, secrets.token_hex(8))]
    now = context.now()
    try:
        async with context.transactions.begin() as tx:
            facts = await tx.operations.facts(now)
    except Unavailable:
        pass  # `_stores` reports it
    else:
        checks += diagnose(facts, version=VERSION, silence=context.silence, now=now)
    with suppress(Unavailable):  # `_stores` reports it
        checks.append(standing(await context.standstills.since(now - STANDSTILLS_SHOWN)))
    return as_json(DiagnosisView(at=now, version=VERSION, agent_redis=_place(context), checks=checks))


async def _stores(context: ApiContext) -> Check:
    problems = await context.readiness.problems()
    return Check(
        name="stores",
        level=Level.FAIL if problems else Level.OK,
        found=f"{'; '.join(problems)}." if problems else "Database, schema and Redis work.",
        why="Jobs cannot be submitted or changed, or commands are late." if problems else "",
        hint="Start the component that does not answer; acknowledged requests are not lost."
        if problems
        else "",
    )


def _place(context: ApiContext) -> str:
    """Return host and port of Redis for agents, without its password."""
    parts = urlsplit(context.agent_redis_url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else ""
