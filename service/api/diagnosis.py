"""`/api/v1/diagnosis`."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.diagnosis import Check, DiagnosisView, Level
from headway.contract.identity import Role
from service.api.access import Reach, needs
from service.api.context import ApiContext, Context
from service.api.health import VERSION
from service.api.render import as_json
from service.domain.diagnosis import diagnose
from service.domain.errors import Unavailable
from service.usecases.diagnose import check_storage

router = APIRouter(prefix="/api/v1/diagnosis", tags=["health"])


@router.get(
    "", operation_id="diagnose", response_model=DiagnosisView, **needs(Role.OPERATOR, Reach.EVERYWHERE)
)
async def get_diagnosis(context: Context) -> Response:
    """What is wrong with the service and its agents, why it matters, and what mends it.

    It answers even when a store does not: that is then what it says.
    """
    checks = [await _stores(context), await check_storage(context.storage, secrets.token_hex(8))]
    now = context.now()
    try:
        async with context.transactions.begin() as tx:
            facts = await tx.diagnostics.facts(now)
    except Unavailable:
        pass  # `_stores` has said so
    else:
        checks += diagnose(facts, version=VERSION, silence=context.silence, now=now)
    return as_json(DiagnosisView(at=now, version=VERSION, agent_redis=_place(context), checks=checks))


async def _stores(context: ApiContext) -> Check:
    problems = await context.readiness.problems()
    return Check(
        name="stores",
        level=Level.FAIL if problems else Level.OK,
        found=f"{'; '.join(problems)}." if problems else "Database, schema and Redis are well.",
        why="Nothing can be submitted or changed, or commands are late." if problems else "",
        hint="Start what does not answer; nothing that was acknowledged is lost." if problems else "",
    )


def _place(context: ApiContext) -> str:
    """Where agents find Redis, without its password."""
    parts = urlsplit(context.agent_redis_url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else ""
