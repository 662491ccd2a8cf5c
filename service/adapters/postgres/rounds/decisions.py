"""Decisions of scheduling rounds, and the settings of the policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import and_, delete, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.decisions import RoundView
from service.adapters.postgres.engine.session import OnSession, Session, Statement
from service.adapters.postgres.rounds.snapshot import take_snapshot
from service.adapters.postgres.tables.core import cluster_settings, rounds
from service.domain.allocation.decision.plan import Decision
from service.domain.cluster.contention_rules import USUAL, ContentionRules
from service.domain.cluster.snapshot import SHARE_HALF_LIFE_S, PolicySetting, Snapshot
from service.usecases.ports.rounds import Rounds

_STORE = Statement(
    """
    INSERT INTO decisions (job_id, round_id, decided_at, action, reason, message, options, starts_at)
    SELECT decided.job_id, CAST(:round_id AS text), CAST(:now AS timestamptz), decided.action, decided.reason, decided.message, decided.options,
        decided.starts_at
    FROM jsonb_to_recordset(CAST(:rows AS jsonb))
        AS decided(job_id text, action text, reason text, message text, options jsonb, starts_at timestamptz)
    JOIN jobs ON jobs.id = decided.job_id
    LEFT JOIN decisions AS last ON last.job_id = decided.job_id
    WHERE (last.action, last.message, last.options, last.starts_at)
        IS DISTINCT FROM (decided.action, decided.message, decided.options, decided.starts_at)
    ON CONFLICT (job_id) DO UPDATE SET
        (round_id, decided_at, action, reason, message, options, starts_at) =
        (excluded.round_id, excluded.decided_at, excluded.action, excluded.reason, excluded.message, excluded.options,
         excluded.starts_at)
    """
)


class PostgresRounds(OnSession, Rounds):
    """Rounds in PostgreSQL.

    Slot use that is `share_half_life_s` old counts half. Scheduling rounds apply the rules of `contention`.
    """

    def __init__(
        self,
        session: Session,
        share_half_life_s: float = SHARE_HALF_LIFE_S,
        contention: ContentionRules = USUAL,
    ) -> None:
        super().__init__(session)
        self._share_half_life_s = share_half_life_s
        self._contention = contention

    async def snapshot(
        self, now: datetime, usd_per_slot_h: Mapping[str, float] = MappingProxyType({})
    ) -> Snapshot:
        return await take_snapshot(
            self._session,
            now,
            usd_per_slot_h,
            share_half_life_s=self._share_half_life_s,
            contention=self._contention,
        )

    async def store_decisions(self, decisions: Sequence[Decision], round_id: str, now: datetime) -> None:
        # Only changed decisions are written.
        rows = [
            {
                "job_id": one.job_id,
                "action": one.action,
                "reason": one.reason,
                "message": one.message,
                "options": [option.model_dump(mode="json") for option in one.options],
                "starts_at": None if one.starts_at is None else one.starts_at.isoformat(),
            }
            for one in sorted(decisions, key=lambda one: one.job_id)
        ]
        if rows:
            await self._session.fetch(_STORE, rows=json.dumps(rows), round_id=round_id, now=now)

    async def store_round(self, round_: RoundView) -> None:
        await self._session.execute(delete(rounds).where(text("changes = '[]'::jsonb")))
        stored = _finite(round_.model_dump(mode="json", by_alias=True, exclude={"other_changes"}))
        await self._session.execute(insert(rounds).values({**stored, "at": round_.at}))

    async def policy(self) -> PolicySetting:
        row = await self._session.first(select(cluster_settings))
        return PolicySetting() if row is None else PolicySetting(row.policy, row.parameters)

    async def choose_policy(self, setting: PolicySetting, now: datetime) -> None:
        values = {**_of(setting), "policy_state": {}, "updated_at": now}
        statement = upsert(cluster_settings).values(id=1, **values)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))

    async def carry_over(self, setting: PolicySetting, state: Mapping[str, Any], now: datetime) -> None:
        values = {"policy_state": dict(state)}
        statement = upsert(cluster_settings).values(id=1, **_of(setting), **values, updated_at=now)
        chosen = cluster_settings.c
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["id"],
                set_=values,
                where=and_(
                    chosen.policy == statement.excluded.policy,
                    chosen.parameters == statement.excluded.parameters,
                ),
            )
        )


def _finite(value: Any) -> Any:
    """Return the value with 0 for each number in it that JSON cannot express."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def _of(setting: PolicySetting) -> dict[str, Any]:
    return {"policy": setting.name, "parameters": dict(setting.parameters)}
