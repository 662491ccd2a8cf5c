"""Facts for the diagnosis of the cluster."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select, text

from headway.contract.views.jobs import JobState, Reason
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.core import TERMINAL_SQL, commands, jobs, nodes
from service.adapters.postgres.tables.reliability import leadership, quarantines
from service.adapters.postgres.tables.schema import database_state
from service.domain.nodes.diagnosis import COMMAND_LATE_S, Facts, JobFacts, NodeFacts

_MOST_JOBS = 10_000


class DiagnosisFacts(OnSession):
    """Mixin for the facts of a diagnosis."""

    async def facts(self, now: datetime) -> Facts:
        state = (await self._session.execute(select(database_state))).one()
        return Facts(
            nodes=await self._nodes(now),
            jobs=await self._jobs(),
            led_at=(await self._session.execute(select(leadership.c.renewed_at))).scalar(),
            known_until=state.backed_up_at,
            restored_at=state.restored_at,
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
