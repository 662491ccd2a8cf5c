"""Rows of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import and_, func, literal, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.identity import TokenView
from headway.contract.views.jobs import Page
from service.adapters.postgres.engine.cursors import cursor_after, newest_first
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.identity import tokens, users
from service.domain.shared.errors import NotFound
from service.usecases.ports.identity import Bearer, TokenRecord, Tokens, TokensSeen, session_of_token

_BEARERS = text(
    """
    SELECT sha256, tokens.id, tokens.name, user_id, role, project, session, parent_id, created_by, tokens.created_at, expires_at,
           revoked_at, last_used_at, users.name AS user_name, disabled_at,
           (SELECT jsonb_object_agg(members.project, members.role) FROM members
            WHERE members.user_id = tokens.user_id) AS roles
    FROM tokens LEFT JOIN users ON users.id = tokens.user_id WHERE sha256 = ANY(CAST(:digests AS text[]))
    """
)
_END_FAMILY = text(
    """
    WITH RECURSIVE family (id) AS (
        SELECT CAST(:id AS text)
        UNION SELECT tokens.id FROM tokens JOIN family
              ON tokens.parent_id = family.id OR tokens.session = CAST(:session AS text) || family.id
    )
    UPDATE tokens SET revoked_at = CAST(:now AS timestamptz) WHERE id IN (SELECT id FROM family) AND revoked_at IS NULL
    """
)
_USED = text(
    """
    WITH used AS (SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:moments AS timestamptz[])) AS used (id, at)), marked AS (
        UPDATE tokens SET last_used_at = used.at FROM used
        WHERE tokens.id = used.id
          AND (last_used_at IS NULL OR last_used_at < used.at - make_interval(secs => :every_s))
        RETURNING user_id, last_used_at
    )
    UPDATE users SET last_seen_at = seen.at
    FROM (SELECT user_id, max(last_used_at) AS at FROM marked GROUP BY user_id) AS seen
    WHERE users.id = seen.user_id AND (last_seen_at IS NULL OR last_seen_at < seen.at)
    """
)


class PostgresTokens(OnSession, Tokens):
    """Tokens in PostgreSQL."""

    async def of_digest(self, token_sha256: str) -> Bearer | None:
        return (await self.of_digests([token_sha256])).get(token_sha256)

    async def of_digests(self, tokens_sha256: Collection[str]) -> dict[str, Bearer]:
        return {
            row.sha256: record_of(Bearer, row, token=record_of(TokenRecord, row), roles=row.roles or {})
            for row in await self._session.rows(_BEARERS, {"digests": list(tokens_sha256)})
        }

    async def used(self, at: Mapping[str, datetime], at_most_every_s: float) -> None:
        # The rows are locked in the order of their ids, so that two API processes cannot deadlock.
        ids = sorted(at)
        if ids:
            moments = [at[one] for one in ids]
            await self._session.execute(
                select(tokens.c.id)
                .where(one_of(tokens.c.id, ids))
                .order_by(tokens.c.id)
                .with_for_update(key_share=True)
            )
            await self._session.execute(_USED, {"ids": ids, "moments": moments, "every_s": at_most_every_s})

    async def add(self, token: TokenRecord, token_sha256: str) -> bool:
        fields = values_of(token)
        equal = [
            tokens.c[name].is_not_distinct_from(fields[name])
            for name in ("name", "user_id", "role", "project", "session", "parent_id", "created_by")
        ]
        statement = upsert(tokens).values(sha256=token_sha256, **fields)
        statement = statement.on_conflict_do_update(
            index_elements=["id"],
            set_={"sha256": token_sha256, "expires_at": token.expires_at},
            where=and_(tokens.c.last_used_at.is_(None), tokens.c.revoked_at.is_(None), *equal),
        )
        return await self._session.first(statement.returning(tokens.c.id)) is not None

    async def page(
        self, seen: TokensSeen, *, now: datetime, limit: int, cursor: str | None
    ) -> Page[TokenView]:
        query = (
            select(tokens, users.c.name.label("user_name"))
            .join(users, users.c.id == tokens.c.user_id, isouter=True)
            .where(tokens.c.revoked_at.is_(None))
            .where(or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))
        )
        if seen.projects is not None:
            of_robots = and_(tokens.c.user_id.is_(None), tokens.c.project.in_(seen.projects))
            # Not `==`: with None it would match the tokens of all service accounts.
            of_user = tokens.c.user_id.in_([seen.user_id] if seen.user_id else [])
            itself = tokens.c.id.in_([seen.token_id] if seen.token_id else [])
            query = query.where(or_(of_user, itself, of_robots))
        rows = await self._session.rows(
            newest_first(query, tokens.c.created_at, tokens.c.id, limit=limit, cursor=cursor)
        )
        return Page(
            items=[
                record_of(TokenView, row, user=row.user_name, made_with=row.parent_id) for row in rows[:limit]
            ],
            next_cursor=cursor_after(rows, limit, "created_at"),
        )

    async def lock(self, token_id: str) -> TokenRecord:
        query = select(tokens).where(tokens.c.id == token_id).with_for_update()
        row = await self._session.first(query)
        if row is None:
            raise NotFound(f"no token has the id {token_id!r}; `headway token ls` lists them.")
        return record_of(TokenRecord, row)

    async def renew(
        self, old_sha256: str, new_sha256: str, *, now: datetime, until: datetime
    ) -> TokenRecord | None:
        presented = tokens.alias("presented")
        presented_until = (
            select(presented.c.expires_at)
            .where(tokens.c.session == literal(session_of_token("")) + presented.c.id)
            .scalar_subquery()
        )
        works = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > now)
        statement = (
            update(tokens)
            .where(tokens.c.sha256 == old_sha256, works)
            .values(sha256=new_sha256, expires_at=func.least(until, presented_until))
            .returning(tokens)
        )
        row = await self._session.first(statement)
        return None if row is None else record_of(TokenRecord, row)

    async def revoke(self, token_id: str, now: datetime, *, family: bool = False) -> None:
        if family:
            session = session_of_token("")
            await self._session.execute(_END_FAMILY, {"id": token_id, "now": now, "session": session})
            return
        tokens_and_sessions = (tokens.c.id == token_id) | (tokens.c.session == session_of_token(token_id))
        await self._session.execute(
            update(tokens).where(tokens_and_sessions, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        )
