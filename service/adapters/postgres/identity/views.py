"""Queries for tokens, users and projects as the API returns them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Text, and_, bindparam, or_, select, text, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

from headway.contract.views.identity import ProjectQuota, ProjectView, Role, TokenView, UserView
from headway.contract.views.jobs import Page
from headway.contract.views.money import Period
from service.adapters.postgres.engine.cursors import read_cursor, write_cursor
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession, Session
from service.adapters.postgres.money.tenants import SHARE_HALF_LIFE_S, used_slot_s
from service.adapters.postgres.tables.identity import tokens, users
from service.domain.rental.budgets import period_of
from service.usecases.ports.identity import AccessQueries, TokensSeen

_USERS = text(
    """
    SELECT id, name, created_at, last_seen_at, disabled_at,
           (SELECT jsonb_object_agg(project, role) FROM members WHERE user_id = users.id) AS roles
    FROM users WHERE (CAST(:name AS text) IS NULL OR name = :name) AND name > :after
    ORDER BY name LIMIT :limit
    """
)
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
    WHERE (:names IS NULL OR projects.name = ANY(:names)) AND projects.name > :after
    ORDER BY projects.name LIMIT :limit
    """
).bindparams(bindparam("names", type_=ARRAY(Text)))
_WEIGHTS = text("SELECT name, weight FROM projects")


class PostgresAccessQueries(OnSession, AccessQueries):
    """Views of users, tokens and projects in PostgreSQL. Slot use that is `share_half_life_s` old counts half."""

    def __init__(self, session: Session, share_half_life_s: float = SHARE_HALF_LIFE_S) -> None:
        super().__init__(session)
        self._share_half_life_s = share_half_life_s

    async def tokens(
        self, seen: TokensSeen, *, now: datetime, limit: int, cursor: str | None
    ) -> Page[TokenView]:
        query = (
            select(tokens, users.c.name.label("user_name"))
            .join(users, users.c.id == tokens.c.user_id, isouter=True)
            .where(tokens.c.revoked_at.is_(None))
            .where(or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))
            .order_by(tokens.c.created_at.desc(), tokens.c.id.desc())
            .limit(limit + 1)
        )
        if seen.projects is not None:
            of_robots = and_(tokens.c.user_id.is_(None), tokens.c.project.in_(seen.projects))
            # Not `==`: with None it would match the tokens of all service accounts.
            of_user = tokens.c.user_id.in_([seen.user_id] if seen.user_id else [])
            itself = tokens.c.id.in_([seen.token_id] if seen.token_id else [])
            query = query.where(or_(of_user, itself, of_robots))
        if cursor is not None:
            query = query.where(tuple_(tokens.c.created_at, tokens.c.id) < tuple_(*read_cursor(cursor)))
        rows = await self._session.rows(query)
        more = write_cursor(rows[limit - 1].created_at, rows[limit - 1].id) if len(rows) > limit else None
        return Page[TokenView](items=[_token_view(row) for row in rows[:limit]], next_cursor=more)

    async def users(self, *, name: str | None, limit: int, cursor: str | None) -> Page[UserView]:
        values = {"name": name, "after": cursor or "", "limit": limit + 1}
        rows = await self._session.rows(_USERS, values)
        more = rows[limit - 1].name if len(rows) > limit else None
        return Page[UserView](
            items=[record_of(UserView, row, roles=_roles(row.roles)) for row in rows[:limit]],
            next_cursor=more,
        )

    async def projects(
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
        return Page[ProjectView](
            items=[_project(row, used.get(row.name, 0.0), *shares[row.name]) for row in rows[:limit]],
            next_cursor=more,
        )


def _shares(name: str, used: Mapping[str, float], due: Mapping[str, float]) -> tuple[float, float]:
    """Return a project's share of the slot use, and its share of the weights of all projects that use slots."""
    all_used, all_due = sum(used.values()), sum(due.values())
    return (
        used.get(name, 0.0) / all_used if all_used > 0 else 0.0,
        due.get(name, 0.0) / all_due if all_due > 0 else 0.0,
    )


def _token_view(row: Row[Any]) -> TokenView:
    return record_of(TokenView, row, user=row.user_name, made_with=row.parent_id)


def _roles(found: dict[str, str] | None) -> dict[str, Role]:
    return {name: Role(role) for name, role in sorted((found or {}).items())}


def _project(row: Row[Any], used_slot_s: float, share_used: float, share_due: float) -> ProjectView:
    return record_of(
        ProjectView,
        row,
        quota=record_of(ProjectQuota, row),
        members=_roles(row.members),
        usd_this_month=float(row.usd),
        used_slot_h=used_slot_s / 3600,
        share_used=share_used,
        share_due=share_due,
    )
