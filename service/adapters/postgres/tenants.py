"""What projects are promised and have used, for rounds."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.identity import ProjectQuota
from service.domain.cluster import Tenant

SHARE_HALF_LIFE_S = 7 * 86_400.0
"""After so long, use counts half."""
_HALF_LIVES = 6
"""What lies further back counts less than two parts in a hundred: it is not looked at."""
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


async def tenants_of(connection: AsyncConnection, now: datetime, half_life_s: float) -> dict[str, Tenant]:
    """Every project with its quota and its decayed use; empty while no project has a quota."""
    quotas = {
        row.name: ProjectQuota(
            slots=row.slots, max_slots=row.max_slots, usd_per_month=row.usd_per_month, weight=row.weight
        )
        for row in (await connection.execute(_QUOTAS)).all()
    }
    if not quotas:
        return {}
    used = await used_slot_s(connection, now, half_life_s)
    return {
        project: Tenant(quotas.get(project, ProjectQuota()), used.get(project, 0.0))
        for project in sorted({*quotas, *used})
    }


async def used_slot_s(connection: AsyncConnection, now: datetime, half_life_s: float) -> dict[str, float]:
    """Slot-seconds by project, less for those that lie further back."""
    since = now - timedelta(seconds=_HALF_LIVES * half_life_s)
    rows = (await connection.execute(_USED, {"now": now, "since": since, "half_life_s": half_life_s})).all()
    return {row.project: max(0.0, float(row.slot_s)) for row in rows}
