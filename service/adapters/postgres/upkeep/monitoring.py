"""Figures of the cluster for monitoring.

Each statement reads live or recent rows by an index, so its cost does not grow with the history.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.adapters.postgres.upkeep.diagnostics import DiagnosisFacts
from service.usecases.ports.upkeep import ClusterFigures, Monitoring

WITHIN = timedelta(hours=1)

_JOBS = text(
    f"""
    SELECT state, reason, project, count(*) AS jobs, min(state_since) AS since
    FROM jobs WHERE NOT ({TERMINAL_SQL}) GROUP BY state, reason, project
    """  # noqa: S608 - constants
)
_NODES = text("SELECT state, count(*) AS nodes, min(seen_at) AS seen_at FROM nodes GROUP BY state")
_SLOTS = text(
    """
    SELECT one.value->>'device_kind' AS device_kind, nodes.market, count(*) AS slots, count(slot_grants.slot) AS held
    FROM nodes CROSS JOIN LATERAL jsonb_array_elements(nodes.slots) AS one(value)
    LEFT JOIN slot_grants ON slot_grants.node_id = nodes.id AND slot_grants.released_at IS NULL
        AND slot_grants.slot = CAST(one.value->>'index' AS int)
    WHERE nodes.state <> :lost GROUP BY 1, 2
    """
)
_COMMANDS = text(
    "SELECT count(*) AS commands, min(created_at) AS since FROM commands WHERE acknowledged_at IS NULL"
)
_ROUNDS = text(
    """
    SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY took_s), 0) AS median_s, coalesce(max(took_s), 0) AS longest_s,
           coalesce((SELECT gap FROM rounds ORDER BY at DESC, id DESC LIMIT 1), 0) AS gap
    FROM rounds WHERE at > :since
    """
)
_CHANGES = text(
    """
    SELECT one.value->>'action' AS action, coalesce(one.value->>'reason', '') AS reason, count(*) AS changes
    FROM rounds CROSS JOIN LATERAL jsonb_array_elements(changes) AS one(value)
    WHERE at > :since GROUP BY 1, 2
    """
)


class PostgresMonitoring(DiagnosisFacts, Monitoring):
    """Monitoring in PostgreSQL."""

    async def figures(self, now: datetime) -> ClusterFigures:
        since = {"since": now - WITHIN}
        jobs = await self._session.rows(_JOBS)
        nodes = await self._session.rows(_NODES)
        slots = await self._session.rows(_SLOTS, {"lost": NodeState.LOST})
        commands = (await self._session.execute(_COMMANDS)).one()
        rounds = (await self._session.execute(_ROUNDS, since)).one()
        waiting = [row.since for row in jobs if row.state == JobState.PENDING]
        heard = [row.seen_at for row in nodes if row.state != NodeState.LOST]
        return ClusterFigures(
            jobs={(row.state, row.reason, row.project): row.jobs for row in jobs},
            oldest_waiting_s=_age_s(min(waiting, default=None), now),
            nodes={row.state: row.nodes for row in nodes},
            silent_s=_age_s(min(heard, default=None), now),
            slots={(row.device_kind, row.market): (row.slots, row.held) for row in slots},
            commands_waiting=commands.commands,
            oldest_command_s=_age_s(commands.since, now),
            round_s=(float(rounds.median_s), float(rounds.longest_s)),
            gap=float(rounds.gap),
            changes={
                (row.action, row.reason): row.changes for row in await self._session.execute(_CHANGES, since)
            },
        )


def _age_s(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
