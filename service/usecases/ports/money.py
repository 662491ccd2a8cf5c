"""Interfaces for the ledger, spending and budgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.spec_goal import OnBudget
from headway.contract.views.money import BudgetRequest, Category, GroupBy, LeaseBill, UsageGroup
from service.domain.rental.budgets import Budget, JobSpend
from service.domain.rental.ledger import BilledLease, Held, Lease, Place
from service.domain.rental.machines import Machine
from service.domain.rental.paid import Host
from service.domain.rental.timeline import TimelineEvent


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The progress of the ledger.

    `accrued_us` is the moment up to which costs are charged, None before the first pass. `events_to` is the
    number of the last event that the latest pass has seen, and `events_before` that of the pass before.
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
    """A job that has not ended and has a limit on its total cost in dollars."""

    job_id: str
    max_usd: float
    on_budget: OnBudget
    submitted_at: datetime


class Ledger(Protocol):
    """Leases and charges, and the history that they are computed from."""

    async def lock(self) -> LedgerState:
        """Return the progress of the ledger. Other callers wait until this transaction ends."""

    async def save_state(self, state: LedgerState) -> None:
        """Store the progress of the ledger."""

    async def machines_due(self, now: datetime) -> list[MachineDue]:
        """Return machines that are still billed, or whose billing period according to the provider differs
        from the ledger.
        """

    async def hosts(self) -> list[tuple[Host, list[Lease]]]:
        """Return the nodes that are not rented, each with its open leases."""

    async def unsettled(self, after_us: int) -> list[Lease]:
        """Return ended leases of nodes that are not rented and that are not fully settled.

        Only leases that ended after a moment, or shortly before it, are returned.
        """

    async def leases_on(self, node_ids: Collection[str], after_us: int) -> list[Lease]:
        """Return leases of these nodes that ended after a moment or are open."""

    async def new_events(self, after: int) -> tuple[int, list[str]]:
        """Return the number of the last event, and the jobs that have timeline events after number `after`."""

    async def timeline_events(
        self, job_ids: Collection[str], since_us: int | None
    ) -> dict[str, list[TimelineEvent]]:
        """Return timeline events by job: all of them, or those that determine the phase from a moment on."""

    async def members(
        self, job_ids: Collection[str], since_us: int
    ) -> dict[str, tuple[str, dict[int, frozenset[Place]]]]:
        """Return the project of each job, and the slots of its generations that had not ended before a
        moment.
        """

    async def held(
        self, since_us: int, *, node_ids: Collection[str] | None = None, job_id: str | None = None
    ) -> list[Held]:
        """Return the grants of slots since a moment, of these nodes or of this job."""

    async def store(self, written: Sequence[BilledLease], since_us: int) -> None:
        """Store these leases and replace their rows from `since_us` on.

        `since_us` is the start of an hour, or the moment up to which the leases were settled.
        """


class Spending(Protocol):
    """Spending as the API shows it, and budgets with the notices that were sent about them."""

    async def accrued_at(self) -> datetime | None:
        """Return the moment up to which the ledger has charged, or None before its first pass."""

    async def usage(
        self, since: datetime, until: datetime, by: GroupBy, *, projects: frozenset[str] | None
    ) -> list[UsageGroup]:
        """Return the usage in the hours that begin in [since, until), the most expensive group first, days in their order.

        With `projects`, count the jobs of these projects; with None, count everything, idle time included.
        """

    async def unpriced_kinds(self, since: datetime, until: datetime) -> list[str]:
        """Return the device kinds without a price whose slots were used."""

    async def spent_usd(self, since: datetime, *, project: str | None) -> float:
        """Return the dollars in the hours that begin from `since` on: of a project's jobs, or (None) of
        everything.
        """

    async def usd_per_h_now(self) -> dict[str | None, float]:
        """Return the dollars per hour that are spent now: by project for the slots that its jobs hold, and
        under None for all paid slots.
        """

    async def job_spend(self, job_ids: Collection[str]) -> dict[str, JobSpend]:
        """Return the cost of each job so far. Jobs without cost are left out."""

    async def limited_jobs(self) -> list[LimitedJob]:
        """Return the jobs that have not ended and have a cost limit of their own."""

    async def holders(self, project: str | None) -> list[str]:
        """Return the ids of jobs that hold slots: those of a project, or (None) all."""

    async def machine_bills(self, since: datetime, until: datetime) -> list[LeaseBill]:
        """Return the leases of rented machines that were billed at any time in the period, by their start."""

    async def spend_by_label(self, since: datetime) -> dict[tuple[str, str, str], float]:
        """Return the dollars in the hours from `since` on, by project, market and category."""

    async def slot_s(self, since: datetime) -> dict[Category, float]:
        """Return the paid slot-seconds by category."""

    async def lost_slot_s(self, since: datetime) -> dict[str, float]:
        """Return the slot-seconds lost in the hours from `since` on, by cause."""

    async def budgets(self) -> list[Budget]:
        """Return every budget, sorted by name."""

    async def lock_budget(self, name: str) -> Budget | None:
        """Return the budget, locked, or None if there is none of that name."""

    async def save_budget(self, name: str, request: BudgetRequest, version: int, now: datetime) -> Budget:
        """Insert or change a budget."""

    async def delete_budget(self, name: str) -> None:
        """Remove a budget and the record of its notices."""

    async def notices(self) -> dict[str, tuple[datetime, float]]:
        """Return, by subject, the start of the period and the share of the money that the last notice
        reported.
        """

    async def add_notice(self, subject: str, since: datetime, share: float, now: datetime) -> None:
        """Store that a notice about this share was sent."""
