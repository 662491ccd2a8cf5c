"""Budget rows, and what was told of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from headway.contract.money import BudgetKind, BudgetRequest, Period, Scope
from service.adapters.postgres.identity_tables import projects
from service.adapters.postgres.ledger_tables import budget_notices, budgets
from service.domain.cluster import QUOTA_ROWS
from service.domain.errors import InvalidField
from service.domain.rental.budgets import Budget, subject_of_budget


class PostgresBudgets:
    """Implements `usecases.money_ports.Budgets`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def all(self) -> list[Budget]:
        """Every budget, by name, those of projects' quotas among them."""
        rows = await self._connection.execute(select(budgets).order_by(budgets.c.name))
        quotas = select(projects).where(projects.c.usd_per_month.is_not(None))
        of_quotas = [_budget_of_quota(row) for row in (await self._connection.execute(quotas)).all()]
        return sorted([*map(_budget, rows.all()), *of_quotas], key=lambda one: one.name)

    async def lock(self, name: str) -> Budget | None:
        """One budget, locked."""
        query = select(budgets).where(budgets.c.name == name).with_for_update()
        row = (await self._connection.execute(query)).first()
        return None if row is None else _budget(row)

    async def save(self, name: str, request: BudgetRequest, version: int, now: datetime) -> Budget:
        """Insert, or change. Raises InvalidField for a second long-run average."""
        values = {
            "scope": Scope.CLUSTER if request.project is None else Scope.PROJECT,
            "project": request.project,
            "kind": request.kind,
            "usd": request.usd,
            "period": request.period,
            "hard": request.hard,
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
            return _budget((await self._connection.execute(statement)).one())
        except IntegrityError as error:
            if "uq_budgets_long_run" not in str(error.orig):
                raise
            raise InvalidField(
                "kind",
                "there is a long-run average already, and a cluster can keep to one only; change that one",
            ) from error

    async def delete(self, name: str) -> None:
        """Remove it, and what was told of it."""
        await self._connection.execute(delete(budgets).where(budgets.c.name == name))
        subject = subject_of_budget(name)
        await self._connection.execute(delete(budget_notices).where(budget_notices.c.subject == subject))

    async def told(self) -> dict[str, tuple[datetime, float]]:
        """By subject, for which period and share."""
        rows = await self._connection.execute(select(budget_notices))
        return {row.subject: (row.since, row.share) for row in rows.all()}

    async def tell(self, subject: str, since: datetime, share: float, now: datetime) -> None:
        """Note that a share was told of."""
        values = {"since": since, "share": share, "given_at": now}
        statement = upsert(budget_notices).values(subject=subject, **values)
        await self._connection.execute(
            statement.on_conflict_do_update(index_elements=["subject"], set_=values)
        )


def _budget_of_quota(row: Row[Any]) -> Budget:
    """A quota of dollars is a hard budget of its project for every month; it is changed with the project."""
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


def _budget(row: Row[Any]) -> Budget:
    return Budget(
        name=row.name,
        scope=Scope(row.scope),
        project=row.project,
        kind=BudgetKind(row.kind),
        usd=row.usd,
        period=None if row.period is None else Period(row.period),
        hard=row.hard,
        version=row.version,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
