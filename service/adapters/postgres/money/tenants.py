"""Quotas and recent slot use of projects, for scheduling rounds."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text

from headway.contract.views.identity import ProjectQuota
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import Session
from service.domain.cluster.snapshot import Tenant

_HALF_LIVES = 6
"""Half-lives of use that count. Older use would count less than 2 % and is not read."""
_QUOTAS = text(
    """
    SELECT name, slots, max_slots, usd_per_month, weight FROM projects
    WHERE EXISTS (
        SELECT 1 FROM projects WHERE slots IS NOT NULL OR max_slots IS NOT NULL OR usd_per_month IS NOT NULL OR weight <> 1
    )
    ORDER BY name
    """
)
_USED = text(
    """
    SELECT project, sum(slot_us * power(0.5, extract(epoch FROM CAST(:now AS timestamptz) - hour) / :half_life_s)) / 1e6
        AS slot_s
    FROM (
        SELECT project, hour, sum(slot_us) AS slot_us FROM charges
        WHERE project <> '' AND hour > :since
        GROUP BY project, hour
    ) AS of_hours
    GROUP BY project
    """
)


async def tenants_of(session: Session, now: datetime, half_life_s: float) -> dict[str, Tenant]:
    """Return every project with its quota and its decayed slot use; empty while no project has a quota."""
    quotas = {row.name: record_of(ProjectQuota, row) for row in await session.rows(_QUOTAS)}
    if not quotas:
        return {}
    used = await used_slot_s(session, now, half_life_s)
    return {
        project: Tenant(quotas.get(project, ProjectQuota()), used.get(project, 0.0))
        for project in sorted({*quotas, *used})
    }


async def used_slot_s(session: Session, now: datetime, half_life_s: float) -> dict[str, float]:
    """Return the slot-seconds of each project, decayed by age."""
    since = now - timedelta(seconds=_HALF_LIVES * half_life_s)
    rows = await session.rows(_USED, {"now": now, "since": since, "half_life_s": half_life_s})
    return {row.project: max(0.0, float(row.slot_s)) for row in rows}
