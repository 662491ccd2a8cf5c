"""What the ledger and the budgets keep, as ports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.money import BudgetRequest, Category, GroupBy, LeaseBill, UsageGroup
from headway.contract.spec import OnBudget
from service.domain.rental.budgets import Budget, JobSpend
from service.domain.rental.ledger import Held, Lease, Place, Written
from service.domain.rental.machines import Machine
from service.domain.rental.paid import Host
from service.domain.rental.timeline import Mark


@dataclass(frozen=True, slots=True)
class LedgerState:
    """How far the ledger is: `accrued_us` is None before the first pass. Numbers of events: the last that the latest pass
    has seen, and the one before that.
    """

    accrued_us: int | None
    events_to: int
    events_before: int


@dataclass(frozen=True, slots=True)
class MachineDue:
    """A machine whose lease has to be written, with the node that joined from it and its lease so far."""

    machine: Machine
    host: Host | None
    known: Lease | None


@dataclass(frozen=True, slots=True)
class LimitedJob:
    """A job that has not ended and may cost so many dollars in all."""

    job_id: str
    max_usd: float
    on_budget: OnBudget
    submitted_at: datetime


class Ledger(Protocol):
    """Leases and charges, and the history that they are made from."""

    async def lock(self) -> LedgerState:
        """How far the ledger is. Others who ask wait until the transaction ends."""
        ...

    async def save_state(self, state: LedgerState) -> None:
        """How far it is now."""
        ...

    async def machines_due(self, now: datetime) -> list[MachineDue]:
        """Machines that are billed on, or whose provider said since when or until when otherwise than the ledger has it."""
        ...

    async def hosts(self) -> list[tuple[Host, list[Lease]]]:
        """Nodes that nobody rented, each with its open leases."""
        ...

    async def unsettled(self, after_us: int) -> list[Lease]:
        """Leases of such nodes that have ended, of which not everything is settled: ended after a moment, or not long before."""
        ...

    async def leases_on(self, node_ids: Collection[str], after_us: int) -> list[Lease]:
        """Leases with one of the nodes that ended after a moment, or go on."""
        ...

    async def news(self, after: int) -> tuple[int, list[str]]:
        """The number of the last event, and the jobs that have marks after number `after`."""
        ...

    async def marks(self, job_ids: Collection[str], since_us: int | None) -> dict[str, list[Mark]]:
        """Marks by job: all, or those that say what was the case from a moment on."""
        ...

    async def members(
        self, job_ids: Collection[str], since_us: int
    ) -> dict[str, tuple[str, dict[int, frozenset[Place]]]]:
        """Project of each job, and the slots of its generations that had not ended before a moment."""
        ...

    async def held(
        self, since_us: int, *, node_ids: Collection[str] | None = None, job_id: str | None = None
    ) -> list[Held]:
        """Who has held slots since a moment, of nodes or for a job."""
        ...

    async def store(self, written: Sequence[Written], since_us: int) -> None:
        """These leases, and their rows in place of what they had from `since_us` on: an hour's beginning, or until when they
        were settled.
        """
        ...


class MoneyQueries(Protocol):
    """What was spent, as the API shows it."""

    async def accrued_at(self) -> datetime | None:
        """How far the ledger is."""
        ...

    async def usage(
        self, since: datetime, until: datetime, by: GroupBy, *, projects: frozenset[str] | None
    ) -> list[UsageGroup]:
        """Usage in the hours that begin from `since` on and before `until`: by jobs of these projects, or (None) all of it, with
        what was idle.
        """
        ...

    async def unpriced_kinds(self, since: datetime, until: datetime) -> list[str]:
        """Device kinds without a price that slots were used of."""
        ...

    async def spent_usd(self, since: datetime, *, project: str | None) -> float:
        """Dollars in the hours that begin from `since` on: of a project's jobs, or (None) of everything."""
        ...

    async def usd_per_h_now(self) -> dict[str | None, float]:
        """Dollars per hour that are spent now, by project for what its jobs hold; None for all that is paid for."""
        ...

    async def job_spend(self, job_ids: Collection[str]) -> dict[str, JobSpend]:
        """What jobs have cost so far, those that have cost something."""
        ...

    async def limited_jobs(self) -> list[LimitedJob]:
        """Jobs that have not ended and have a limit of their own."""
        ...

    async def holders(self, project: str | None) -> list[str]:
        """Jobs that hold slots, of a project or (None) all."""
        ...

    async def machine_bills(self, since: datetime, until: datetime) -> list[LeaseBill]:
        """Leases of rented machines that were billed at some time between the two."""
        ...

    async def spend_by_label(self, since: datetime) -> dict[tuple[str, str, str], float]:
        """Dollars in the hours from `since` on, by project, market and category."""
        ...

    async def slot_s(self, since: datetime) -> dict[Category, float]:
        """Slot-seconds that were paid for, by what became of them."""
        ...

    async def lost_slot_s(self, since: datetime) -> dict[str, float]:
        """Slot-seconds lost in the hours from `since` on, by cause."""
        ...


class Budgets(Protocol):
    """Budgets, and what was told of them."""

    async def all(self) -> list[Budget]:
        """Every budget, by name."""
        ...

    async def lock(self, name: str) -> Budget | None:
        """One budget, locked; None where there is none of that name."""
        ...

    async def save(self, name: str, request: BudgetRequest, version: int, now: datetime) -> Budget:
        """Insert, or change."""
        ...

    async def delete(self, name: str) -> None:
        """Remove it, and what was told of it."""
        ...

    async def told(self) -> dict[str, tuple[datetime, float]]:
        """By subject the start of the period, and the share of the money that was last told of."""
        ...

    async def tell(self, subject: str, since: datetime, share: float, now: datetime) -> None:
        """Note that a share was told of."""
        ...
