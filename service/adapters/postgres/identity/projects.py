"""Rows of projects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.identity import ProjectQuota, ProjectView
from headway.contract.views.jobs import Page
from headway.contract.views.money import Period
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession, Session
from service.adapters.postgres.money.tenants import used_slot_s
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.adapters.postgres.tables.identity import members, projects, secrets, tokens
from service.domain.cluster.snapshot import SHARE_HALF_LIFE_S
from service.domain.rental.budgets import period_of
from service.usecases.ports.identity import ProjectRecord, Projects

_PROJECTS = text(
    """
    SELECT projects.*, coalesce(held.slots, 0) AS slots_held,
           greatest(0, least(
               coalesce(projects.slots, 0) - coalesce(held.slots, 0)
                   - (SELECT coalesce(sum(jsonb_array_length(slots)), 0) FROM nodes WHERE state = 'READY')
                   + (SELECT count(*) FROM slot_grants JOIN nodes ON nodes.id = slot_grants.node_id
                      WHERE released_at IS NULL AND state = 'READY'),
               (SELECT count(*) FROM slot_grants WHERE released_at IS NULL) - coalesce(held.slots, 0)
           )) AS slots_lent, coalesce(spent.usd, 0) AS usd,
           CASE WHEN EXISTS (SELECT 1 FROM projects WHERE slots > 0)
                THEN greatest(0, coalesce(held.slots, 0) - coalesce(projects.slots, 0)) ELSE 0 END AS slots_borrowed,
           (SELECT jsonb_object_agg(users.name, role) FROM members JOIN users ON users.id = members.user_id
            WHERE members.project = projects.name) AS members
    FROM projects
    LEFT JOIN (
        SELECT jobs.project, count(*) AS slots FROM slot_grants JOIN jobs ON jobs.id = slot_grants.job_id
        WHERE released_at IS NULL GROUP BY jobs.project
    ) AS held ON held.project = projects.name
    LEFT JOIN (
        SELECT charges.project, sum(charges.slot_us * leases.usd_per_slot_h::numeric / 3600000000) AS usd
        FROM charges JOIN leases ON leases.id = charges.lease_id
        WHERE charges.hour >= :month AND leases.usd_per_slot_h IS NOT NULL GROUP BY charges.project
    ) AS spent ON spent.project = projects.name
    WHERE (CAST(:names AS text[]) IS NULL OR projects.name = ANY(:names)) AND projects.name > :after
    ORDER BY projects.name LIMIT :limit
    """
)
_WEIGHTS = text("SELECT name, weight FROM projects")
_NEEDED_BY = text(
    f"""
    SELECT 'job ' || name FROM jobs WHERE project = :name AND NOT ({TERMINAL_SQL})
    UNION ALL SELECT 'budget ' || name FROM budgets WHERE project = :name
    ORDER BY 1 LIMIT 10
    """  # noqa: S608 - constants of this file
)


class PostgresProjects(OnSession, Projects):
    """Projects in PostgreSQL. Slot use that is `share_half_life_s` old counts half."""

    def __init__(self, session: Session, share_half_life_s: float = SHARE_HALF_LIFE_S) -> None:
        super().__init__(session)
        self._share_half_life_s = share_half_life_s

    async def page(
        self, names: frozenset[str] | None, now: datetime, *, limit: int, cursor: str | None
    ) -> Page[ProjectView]:
        values = {
            "names": None if names is None else sorted(names),
            "month": period_of(Period.MONTH, now)[0],
            "after": cursor or "",
            "limit": limit + 1,
        }
        rows = await self._session.rows(_PROJECTS, values)
        more = rows[limit - 1].name if len(rows) > limit else None
        used = await used_slot_s(self._session, now, self._share_half_life_s)
        weights = {row.name: row.weight for row in await self._session.rows(_WEIGHTS)}
        due = {name: weight for name, weight in weights.items() if name in used} | {
            row.name: row.weight for row in rows if row.slots_held
        }
        shares = {row.name: _shares(row.name, used, due) for row in rows}
        return Page(
            items=[_project(row, used.get(row.name, 0.0), *shares[row.name]) for row in rows[:limit]],
            next_cursor=more,
        )

    async def lock(self, name: str) -> ProjectRecord | None:
        # A submit holds FOR KEY SHARE, so no job can be added between the check for live jobs and the
        # deletion.
        query = select(projects).where(projects.c.name == name).with_for_update()
        row = await self._session.first(query)
        return None if row is None else record_of(ProjectRecord, row, quota=record_of(ProjectQuota, row))

    async def exists(self, name: str) -> bool:
        query = (
            select(projects.c.name).where(projects.c.name == name).with_for_update(read=True, key_share=True)
        )
        return await self._session.first(query) is not None

    async def save(self, project: ProjectRecord) -> None:
        values = {"description": project.description, **project.quota.model_dump()}
        statement = upsert(projects).values(name=project.name, created_at=project.created_at, **values)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))

    async def delete(self, name: str) -> list[str]:
        # These rows are deleted too, because a later project of the same name is a different project.
        needed_by = await self._session.scalars(_NEEDED_BY, {"name": name})
        if needed_by:
            return needed_by
        for table in (members, tokens, secrets):
            await self._session.execute(delete(table).where(table.c.project == name))
        await self._session.execute(delete(projects).where(projects.c.name == name))
        return []


def _shares(name: str, used: Mapping[str, float], due: Mapping[str, float]) -> tuple[float, float]:
    """Return a project's share of the slot use, and its share of the weights of all projects that use slots."""
    all_used, all_due = sum(used.values()), sum(due.values())
    return (
        used.get(name, 0.0) / all_used if all_used > 0 else 0.0,
        due.get(name, 0.0) / all_due if all_due > 0 else 0.0,
    )


def _project(row: Row[Any], used_slot_s: float, share_used: float, share_due: float) -> ProjectView:
    return record_of(
        ProjectView,
        row,
        quota=record_of(ProjectQuota, row),
        members=dict(sorted((row.members or {}).items())),
        usd_this_month=float(row.usd),
        used_slot_h=used_slot_s / 3600,
        share_used=share_used,
        share_due=share_due,
    )
