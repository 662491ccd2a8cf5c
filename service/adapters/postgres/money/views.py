"""Sums over charges for the API, and rows of budgets.

Dollars are summed as exact decimals, so that groups add up to the total.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal
from typing import Any

from asyncpg import UniqueViolationError
from sqlalchemy import Row, delete, select, text
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.money import (
    BudgetKind,
    BudgetRequest,
    Category,
    GroupBy,
    LeaseBill,
    Period,
    Scope,
    UsageGroup,
)
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession, Statement
from service.adapters.postgres.tables.core import TERMINAL_SQL
from service.adapters.postgres.tables.identity import projects
from service.adapters.postgres.tables.rental import budget_notices, budgets
from service.domain.cluster.snapshot import QUOTA_ROWS
from service.domain.rental.budgets import Budget, JobSpend, subject_of_budget
from service.domain.shared.errors import InvalidField
from service.usecases.ports.money import LimitedJob, Spending

_USD = "charges.slot_us * leases.usd_per_slot_h::numeric / 3600000000"
_SUMS = ", ".join(
    f"coalesce(sum({_USD}) FILTER (WHERE category = '{one}'), 0) AS {one}_usd, "
    f"coalesce(sum(slot_us) FILTER (WHERE category = '{one}'), 0) AS {one}_us"
    for one in Category
)
_US_PER_H = 3_600_000_000
_FROM = "charges JOIN leases ON leases.id = charges.lease_id"
_KEYS = {
    GroupBy.JOB: "charges.job_id",
    GroupBy.PROJECT: "charges.project",
    GroupBy.MARKET: "leases.market",
    GroupBy.NODE: "coalesce(leases.node_id, '')",
    GroupBy.CATEGORY: "charges.category",
    GroupBy.DAY: "to_char(charges.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}
_LABELS = {
    GroupBy.JOB: "(SELECT name FROM jobs WHERE id = found.key)",
    GroupBy.NODE: "(SELECT name FROM nodes WHERE id = found.key)",
}
_BILLS = text(
    f"""
    SELECT machines.id, instance_type, machines.market, billed_from, billed_to,
           extract(epoch FROM leases.to_at - leases.from_at) AS paid_s,
           coalesce(sum(charges.slot_us), 0) / greatest(jsonb_array_length(leases.slots), 1) / 1000000.0 AS charged_s,
           coalesce(sum({_USD}), 0) AS usd
    FROM machines JOIN leases ON leases.id = machines.id LEFT JOIN charges ON charges.lease_id = leases.id
    WHERE leases.from_at < :until AND leases.to_at > :since
    GROUP BY machines.id, leases.id ORDER BY billed_from, machines.id
    """  # noqa: S608 - constants
)
_NOW = text(
    """
    SELECT jobs.project, sum(leases.usd_per_slot_h) AS usd
    FROM slot_grants
    JOIN jobs ON jobs.id = slot_grants.job_id
    JOIN leases ON leases.open AND leases.node_id = slot_grants.node_id AND leases.slots @> to_jsonb(slot_grants.slot)
    WHERE slot_grants.released_at IS NULL
    GROUP BY jobs.project
    UNION ALL
    SELECT NULL, sum(usd_per_slot_h * jsonb_array_length(slots)) FROM leases WHERE open
    """
)

_LIMITED = text(
    f"""
    SELECT id AS job_id, CAST(spec->'goal'->>'max_cost_usd' AS float) AS max_usd,
           coalesce(spec->'goal'->>'on_budget', 'shrink') AS on_budget, submitted_at
    FROM jobs WHERE NOT ({TERMINAL_SQL}) AND spec->'goal'->>'max_cost_usd' IS NOT NULL ORDER BY id
    """  # noqa: S608
)
_HOLDERS = text(
    """
    SELECT DISTINCT job_id FROM slot_grants JOIN jobs ON jobs.id = job_id
    WHERE released_at IS NULL AND (CAST(:project AS text) IS NULL OR project = :project) ORDER BY job_id
    """
)
_JOB_SPEND = Statement(
    f"""
    SELECT charges.job_id, {_SUMS}, bool_or(usd_per_slot_h IS NULL) AS unpriced
    FROM {_FROM} WHERE charges.job_id = ANY(CAST(:jobs AS text[])) GROUP BY charges.job_id
    """  # noqa: S608
)


class PostgresSpending(OnSession, Spending):
    """Spending and budgets in PostgreSQL."""

    async def accrued_at(self) -> datetime | None:
        moment: datetime | None = (
            await self._session.execute(text("SELECT accrued_at FROM ledger_state"))
        ).scalar_one_or_none()
        return moment

    async def usage(
        self, since: datetime, until: datetime, by: GroupBy, *, projects: frozenset[str] | None
    ) -> list[UsageGroup]:
        key, label = _KEYS[by], _LABELS.get(by, "found.key")
        only = "AND charges.project = ANY(:projects)" if projects is not None else ""
        query = f"""
            SELECT found.*, coalesce({label}, found.key) AS label FROM (
                SELECT {key} AS key, {_SUMS},
                       coalesce(sum(slot_us) FILTER (WHERE usd_per_slot_h IS NULL), 0) AS unpriced_us
                FROM {_FROM} WHERE charges.hour >= :since AND charges.hour < :until {only} GROUP BY 1
            ) AS found
        """  # noqa: S608 - constants
        values: dict[str, Any] = {"since": since, "until": until}
        if projects is not None:
            values["projects"] = sorted(projects)
        rows = await self._session.rows(text(query), values)
        found = [_group(row) for row in rows]
        if by is GroupBy.DAY:
            return sorted(found, key=lambda one: one.key)
        return sorted(found, key=lambda one: (-one.usd, -one.slot_h, one.key))

    async def unpriced_kinds(self, since: datetime, until: datetime) -> list[str]:
        query = text(
            f"SELECT DISTINCT leases.device_kind FROM {_FROM} WHERE usd_per_slot_h IS NULL"  # noqa: S608
            " AND charges.hour >= :since AND charges.hour < :until ORDER BY 1"
        )
        return await self._session.scalars(query, {"since": since, "until": until})

    async def spent_usd(self, since: datetime, *, project: str | None) -> float:
        only = "AND charges.project = :project" if project is not None else ""
        query = text(f"SELECT coalesce(sum({_USD}), 0) FROM {_FROM} WHERE charges.hour >= :since {only}")  # noqa: S608
        values = {"since": since} if project is None else {"since": since, "project": project}
        return float((await self._session.execute(query, values)).scalar_one())

    async def usd_per_h_now(self) -> dict[str | None, float]:
        rows = await self._session.rows(_NOW)
        return {row.project: float(row.usd or 0.0) for row in rows}

    async def job_spend(self, job_ids: Collection[str]) -> dict[str, JobSpend]:
        return {
            row.job_id: record_of(JobSpend, row)
            for row in await self._session.fetch(_JOB_SPEND, jobs=list(job_ids))
        }

    async def limited_jobs(self) -> list[LimitedJob]:
        return [record_of(LimitedJob, row) for row in await self._session.rows(_LIMITED)]

    async def holders(self, project: str | None) -> list[str]:
        return await self._session.scalars(_HOLDERS, {"project": project})

    async def machine_bills(self, since: datetime, until: datetime) -> list[LeaseBill]:
        rows = await self._session.rows(_BILLS, {"since": since, "until": until})
        return [record_of(LeaseBill, row, machine_id=row.id) for row in rows]

    async def spend_by_label(self, since: datetime) -> dict[tuple[str, str, str], float]:
        query = text(
            f"SELECT charges.project, leases.market, category, sum({_USD}) AS usd FROM {_FROM}"  # noqa: S608
            " WHERE hour >= :since AND usd_per_slot_h IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        rows = await self._session.rows(query, {"since": since})
        return {(row.project, row.market, row.category): float(row.usd) for row in rows}

    async def slot_s(self, since: datetime) -> dict[Category, float]:
        query = text(
            "SELECT category, sum(slot_us) / 1000000.0 AS seconds FROM charges WHERE hour >= :since GROUP BY category"
        )
        rows = await self._session.rows(query, {"since": since})
        return {Category(row.category): float(row.seconds) for row in rows}

    async def lost_slot_s(self, since: datetime) -> dict[str, float]:
        query = text(
            "SELECT cause, sum(slot_us) / 1000000.0 AS seconds FROM charges"
            " WHERE category = 'lost' AND hour >= :since GROUP BY cause ORDER BY cause"
        )
        rows = await self._session.rows(query, {"since": since})
        return {row.cause: float(row.seconds) for row in rows}

    async def budgets(self) -> list[Budget]:
        stored = [record_of(Budget, row) for row in await self._session.rows(select(budgets))]
        quotas = select(projects).where(projects.c.usd_per_month.is_not(None))
        of_quotas = [_budget_of_quota(row) for row in await self._session.rows(quotas)]
        return sorted([*stored, *of_quotas], key=lambda one: one.name)

    async def lock_budget(self, name: str) -> Budget | None:
        query = select(budgets).where(budgets.c.name == name).with_for_update()
        row = await self._session.first(query)
        return None if row is None else record_of(Budget, row)

    async def save_budget(self, name: str, request: BudgetRequest, version: int, now: datetime) -> Budget:
        values = {
            **dict(request),
            "scope": Scope.CLUSTER if request.project is None else Scope.PROJECT,
            "version": version,
            "updated_at": now,
        }
        statement = (
            upsert(budgets)
            .values(name=name, created_at=now, **values)
            .on_conflict_do_update(index_elements=["name"], set_=values)
            .returning(budgets)
        )
        try:
            return record_of(Budget, (await self._session.execute(statement)).one())
        except UniqueViolationError as error:
            if error.constraint_name != "uq_budgets_long_run":
                raise
            raise InvalidField(
                "kind",
                "a cluster has at most one long-run average, and this one has it already; change the existing budget",
            ) from error

    async def delete_budget(self, name: str) -> None:
        await self._session.execute(delete(budgets).where(budgets.c.name == name))
        subject = subject_of_budget(name)
        await self._session.execute(delete(budget_notices).where(budget_notices.c.subject == subject))

    async def notices(self) -> dict[str, tuple[datetime, float]]:
        rows = await self._session.rows(select(budget_notices))
        return {row.subject: (row.since, row.share) for row in rows}

    async def add_notice(self, subject: str, since: datetime, share: float, now: datetime) -> None:
        values = {"since": since, "share": share, "given_at": now}
        statement = upsert(budget_notices).values(subject=subject, **values)
        await self._session.execute(statement.on_conflict_do_update(index_elements=["subject"], set_=values))


def _group(row: Row[Any]) -> UsageGroup:
    usd = {one: Decimal(getattr(row, f"{one}_usd")) for one in Category}
    hours = {one: Decimal(getattr(row, f"{one}_us")) / _US_PER_H for one in Category}
    return UsageGroup(
        key=row.key,
        label=row.label,
        usd=float(sum(usd.values())),
        slot_h=float(sum(hours.values())),
        unpriced_slot_h=float(Decimal(row.unpriced_us) / _US_PER_H),
        **{f"{one}_usd": float(dollars) for one, dollars in usd.items()},
        **{f"{one}_slot_h": float(slot_h) for one, slot_h in hours.items()},
    )


def _budget_of_quota(row: Row[Any]) -> Budget:
    """Return the hard monthly budget that a project's quota of dollars stands for.

    It changes only with the project.
    """
    return Budget(
        name=f"{QUOTA_ROWS}{row.name}",
        scope=Scope.PROJECT,
        project=row.name,
        kind=BudgetKind.PERIOD,
        usd=row.usd_per_month,
        period=Period.MONTH,
        hard=True,
        version=1,
        created_at=row.created_at,
        updated_at=row.created_at,
    )
