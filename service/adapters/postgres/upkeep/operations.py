"""Figures of the cluster for monitoring, facts for its diagnosis, and the steps after a restoration.

Each statement of the figures reads live or recent rows by an index, so its cost does not grow with the history.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select, text, update

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.core import TERMINAL_SQL, api_processes, commands, events, jobs, nodes
from service.adapters.postgres.tables.upkeep import database_state, leadership, quarantines
from service.domain.nodes.diagnosis import COMMAND_LATE_S, Facts, JobFacts, NodeFacts, SaveFacts
from service.usecases.ports.upkeep import ClusterFigures, Operations

WITHIN = timedelta(hours=1)

_JOBS = text(
    f"""
    SELECT state, reason, project, count(*) AS jobs, min(state_since) FILTER (WHERE NOT waits) AS since
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
_SAVES = text(
    """
    SELECT jobs.name AS job, CAST(jobs.progress->>'checkpoint_took_s' AS float) AS save_s,
           min(CAST(host_facts.facts->>'kill_wait_s' AS float)) AS kill_wait_s
    FROM jobs JOIN slot_grants ON slot_grants.job_id = jobs.id AND slot_grants.released_at IS NULL
    JOIN host_facts ON host_facts.node_id = slot_grants.node_id
    WHERE jobs.state = :running AND jobs.progress->>'checkpoint_took_s' IS NOT NULL
        AND host_facts.facts->>'kill_wait_s' IS NOT NULL
    GROUP BY jobs.id ORDER BY jobs.id LIMIT :most
    """
)
_MOST_JOBS = 10_000


class PostgresOperations(OnSession, Operations):
    """Monitoring, diagnosis and restoration in PostgreSQL."""

    async def figures(self, now: datetime) -> ClusterFigures:
        since = {"since": now - WITHIN}
        jobs = await self._session.rows(_JOBS)
        nodes = await self._session.rows(_NODES)
        slots = await self._session.rows(_SLOTS, {"lost": NodeState.LOST})
        commands = (await self._session.execute(_COMMANDS)).one()
        rounds = (await self._session.execute(_ROUNDS, since)).one()
        waiting = [row.since for row in jobs if row.state == JobState.PENDING and row.since is not None]
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

    async def facts(self, now: datetime) -> Facts:
        state = (await self._session.execute(select(database_state))).one()
        return Facts(
            nodes=await self._nodes(now),
            jobs=await self._jobs(),
            led_at=(await self._session.execute(select(leadership.c.renewed_at))).scalar(),
            known_until=state.backed_up_at,
            restored_at=state.restored_at,
            saves=[
                record_of(SaveFacts, row)
                for row in await self._session.rows(_SAVES, {"running": JobState.RUNNING, "most": _MOST_JOBS})
            ],
        )

    async def _nodes(self, now: datetime) -> list[NodeFacts]:
        quarantined = (
            select(func.count())
            .where(quarantines.c.node_id == nodes.c.id, quarantines.c.released_at.is_(None))
            .scalar_subquery()
        )
        late = (
            select(commands.c.node_id, func.count().label("waiting"))
            .where(
                commands.c.acknowledged_at.is_(None),
                commands.c.created_at < now - timedelta(seconds=COMMAND_LATE_S),
            )
            .group_by(commands.c.node_id)
        )
        waiting = {row.node_id: int(row.waiting) for row in await self._session.rows(late)}
        # An agent withholds either all of its slots or none.
        withheld = func.coalesce(nodes.c.slots[0]["withheld"].astext, "").label("withheld")
        columns = (nodes.c.id, nodes.c.name, nodes.c.state, nodes.c.seen_at, nodes.c.agent_version, withheld)
        rows = await self._session.rows(select(*columns, quarantined.label("quarantined")))
        return [record_of(NodeFacts, row, unacknowledged=waiting.get(row.id, 0)) for row in rows]

    async def _jobs(self) -> list[JobFacts]:
        """Return the jobs that may be in trouble, oldest first.

        RUNNING jobs and jobs that simply wait need no attention.
        """
        changing = jobs.c.state.in_(
            [JobState.STARTING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING]
        )
        query = (
            select(jobs.c.name, jobs.c.state, jobs.c.state_since, jobs.c.reason)
            .where(text(f"NOT ({TERMINAL_SQL})"), changing | (jobs.c.reason == Reason.BUDGET))
            .order_by(jobs.c.state_since)
            .limit(_MOST_JOBS)
        )
        return [
            record_of(
                JobFacts,
                row,
                blocked_by_budget=row.reason == Reason.BUDGET
                and row.state in {JobState.PENDING, JobState.PAUSED},
            )
            for row in await self._session.rows(query)
        ]

    async def known_until(self) -> datetime | None:
        # After a restoration this is the moment of the backup, until newer data arrives.
        moments = [
            (await self._session.execute(select(func.max(column)))).scalar_one()
            for column in (
                api_processes.c.seen_at,
                nodes.c.seen_at,
                events.c.at,
                database_state.c.backed_up_at,
            )
        ]
        return max((moment for moment in moments if moment is not None), default=None)

    async def unended_jobs(self) -> list[str]:
        return await self._session.scalars(select(jobs.c.id).where(text(f"NOT ({TERMINAL_SQL})")))

    async def disconnect_nodes(self, message: str, terms_left_out: int) -> int:
        await self._session.execute(
            update(commands).where(commands.c.acknowledged_at.is_(None)).values(acknowledged_at=func.now())
        )
        await self._session.execute(update(leadership).values(term=leadership.c.term + terms_left_out))
        await self._session.execute(api_processes.delete())
        lost = await self._session.execute(update(nodes).values(state=NodeState.LOST, message=message))
        return lost.rowcount

    async def restored(self, known_until: datetime, now: datetime) -> None:
        await self._session.execute(update(database_state).values(backed_up_at=known_until, restored_at=now))


def _age_s(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
