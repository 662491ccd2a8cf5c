"""Rows of budgets and of the notices given about them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from asyncpg import UniqueViolationError
from sqlalchemy import Row, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert

from headway.contract.views.money import BudgetKind, BudgetRequest, Period, Scope
from service.adapters.postgres.engine.records import record_of
from service.adapters.postgres.engine.session import OnSession
from service.adapters.postgres.tables.identity import projects
from service.adapters.postgres.tables.ledger import budget_notices, budgets
from service.domain.cluster.snapshot import QUOTA_ROWS
from service.domain.rental.budgets import Budget, subject_of_budget
from service.domain.shared.errors import InvalidField


class StoredBudgets(OnSession):
    """Mixin for budgets and their notices."""

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
