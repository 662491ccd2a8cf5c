"""Rows of node tokens, join tokens and storage tickets, and the checks of the runs that a node holds."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, exists, insert, or_, select, update

from headway.contract.views.identity import JoinTokenView
from service.adapters.postgres.engine.expressions import one_of
from service.adapters.postgres.engine.records import record_of, values_of
from service.adapters.postgres.engine.session import FetchedRow, OnSession, Statement
from service.adapters.postgres.tables.core import jobs, nodes, slot_grants
from service.adapters.postgres.tables.identity import join_tokens, storage_tickets
from service.domain.identity.credentials import NodeTokens
from service.usecases.ports.credentials import NodeCredentials, Ticket

_EXPIRED_KEPT = timedelta(days=7)
_OF_NODE = Statement("SELECT token_sha256, previous_token_sha256, token_since FROM nodes WHERE id = :node")
_HAD = Statement(
    """
    SELECT bool_or(released_at IS NULL) AS now FROM slot_grants
    WHERE node_id = :node AND job_id = :job AND generation = :generation HAVING count(*) > 0
    """
)
_TOKENS = (nodes.c.id, nodes.c.token_sha256, nodes.c.previous_token_sha256, nodes.c.token_since)


def _tokens(row: Any) -> NodeTokens:
    return NodeTokens(
        newest_sha256=row.token_sha256, previous_sha256=row.previous_token_sha256, used_since=row.token_since
    )


class PostgresNodeCredentials(OnSession, NodeCredentials):
    """Credentials of agents in PostgreSQL."""

    async def of_node(self, node_id: str) -> NodeTokens | None:
        rows = await self._session.fetch(_OF_NODE, node=node_id)
        return _tokens(rows[0]) if rows else None

    async def node_of(self, sha256: str) -> tuple[str, NodeTokens] | None:
        query = select(*_TOKENS).where(
            or_(nodes.c.token_sha256 == sha256, nodes.c.previous_token_sha256 == sha256)
        )
        row = await self._session.first(query)
        return None if row is None else (row.id, _tokens(row))

    async def token_used(self, node_id: str, sha256: str, now: datetime) -> None:
        unused = and_(nodes.c.token_sha256 == sha256, nodes.c.token_since.is_(None))
        await self._session.execute(
            update(nodes).where(nodes.c.id == node_id, unused).values(token_since=now)
        )

    async def token_made(self, node_id: str, previous_sha256: str | None) -> None:
        values = {"previous_token_sha256": previous_sha256, "token_since": None}
        await self._session.execute(update(nodes).where(nodes.c.id == node_id).values(values))

    async def replace_token(self, node_id: str, presented_sha256: str, new_sha256: str) -> bool:
        previous = and_(nodes.c.previous_token_sha256 == presented_sha256, nodes.c.token_since.is_(None))
        statement = (
            update(nodes)
            .where(nodes.c.id == node_id, or_(nodes.c.token_sha256 == presented_sha256, previous))
            .values(token_sha256=new_sha256, previous_token_sha256=presented_sha256, token_since=None)
            .returning(nodes.c.id)
        )
        return await self._session.first(statement) is not None

    async def add_join_token(self, token: JoinTokenView, sha256: str) -> None:
        expired = join_tokens.c.expires_at < token.created_at - _EXPIRED_KEPT
        await self._session.execute(delete(join_tokens).where(expired))
        await self._session.execute(insert(join_tokens).values(sha256=sha256, **token.model_dump()))

    async def join_tokens(self) -> list[JoinTokenView]:
        query = select(join_tokens).order_by(join_tokens.c.created_at.desc(), join_tokens.c.id.desc())
        return [record_of(JoinTokenView, row) for row in await self._session.execute(query)]

    async def find_join_token(self, sha256: str) -> JoinTokenView | None:
        query = select(join_tokens).where(join_tokens.c.sha256 == sha256)
        row = await self._session.first(query)
        return None if row is None else record_of(JoinTokenView, row)

    async def take_join_token(self, token_id: str, now: datetime) -> bool:
        usable = and_(join_tokens.c.uses_left > 0, join_tokens.c.expires_at > now)
        statement = (
            update(join_tokens)
            .where(join_tokens.c.id == token_id, usable)
            .values(uses_left=join_tokens.c.uses_left - 1)
            .returning(join_tokens.c.id)
        )
        return await self._session.first(statement) is not None

    async def remove_join_token(self, token_id: str) -> bool:
        statement = delete(join_tokens).where(join_tokens.c.id == token_id).returning(join_tokens.c.id)
        return await self._session.first(statement) is not None

    async def holds(self, node_id: str, job_id: str, generation: int) -> bool:
        return any(row.now for row in await self._had(node_id, job_id, generation))

    async def held(self, node_id: str, job_id: str, generation: int) -> bool:
        return bool(await self._had(node_id, job_id, generation))

    async def needs_bundle(self, node_id: str, digest: str) -> bool:
        needs = exists().where(
            slot_grants.c.node_id == node_id,
            slot_grants.c.released_at.is_(None),
            slot_grants.c.job_id == jobs.c.id,
            jobs.c.spec["bundle"].astext == digest,
        )
        return bool((await self._session.execute(select(needs))).scalar_one())

    async def known_nodes(self, node_ids: Collection[str]) -> set[str]:
        query = select(nodes.c.id).where(one_of(nodes.c.id, node_ids))
        return set(await self._session.scalars(query))

    async def _had(self, node_id: str, job_id: str, generation: int) -> list[FetchedRow]:
        """Return one row if the run holds or held a slot on the node; its column says if it holds one now."""
        return await self._session.fetch(_HAD, node=node_id, job=job_id, generation=generation)

    async def add_ticket(self, sha256: str, ticket: Ticket, now: datetime) -> None:
        await self._session.execute(delete(storage_tickets).where(storage_tickets.c.expires_at < now))
        await self._session.execute(insert(storage_tickets).values(sha256=sha256, **values_of(ticket)))

    async def find_ticket(self, sha256: str) -> Ticket | None:
        query = select(storage_tickets).where(storage_tickets.c.sha256 == sha256)
        row = await self._session.first(query)
        return None if row is None else record_of(Ticket, row)
