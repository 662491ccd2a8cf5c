"""Interfaces of the use cases to the database. Adapters implement them, and `service/main.py` chooses the adapters.

A `Transaction` is one unit of work: it commits as a whole when its block ends without an error. The wake-ups that the block asked
for are sent only after that commit.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from service.usecases.ports.audit import Audit
from service.usecases.ports.chains import Chains
from service.usecases.ports.credentials import NodeCredentials
from service.usecases.ports.facts import Fact, WakeUp
from service.usecases.ports.identity import Projects, Tokens, Users
from service.usecases.ports.jobs import Grants, JobQueries, Jobs
from service.usecases.ports.links import HostLinks
from service.usecases.ports.money import Ledger, Spending
from service.usecases.ports.nodes import NodeQueries, Nodes
from service.usecases.ports.notifications import Outbox, Webhooks
from service.usecases.ports.rental import Machines
from service.usecases.ports.rounds import Commands, RoundQueries, Rounds
from service.usecases.ports.secrets import Secrets
from service.usecases.ports.simulations import Simulations
from service.usecases.ports.storage import Bundles
from service.usecases.ports.sweeps import SweepQueries, Sweeps
from service.usecases.ports.upkeep import Operations, Retention


class Leadership(Protocol):
    """The leadership among schedulers, which one process holds at a time, for a term."""

    async def acquire(self) -> int | None:
        """Return the term in which this process now leads, or None while another process leads. Raise Unavailable."""

    async def lost(self) -> str:
        """Renew the term until that fails, and return the reason."""

    async def resign(self) -> None:
        """End the term, so that another process can lead."""


class Transaction(Protocol):
    """One unit of work over all tables in PostgreSQL."""

    jobs: Jobs
    grants: Grants
    chains: Chains
    sweeps: Sweeps
    nodes: Nodes
    links: HostLinks
    credentials: NodeCredentials
    machines: Machines
    commands: Commands
    rounds: Rounds
    bundles: Bundles
    simulations: Simulations
    job_queries: JobQueries
    sweep_queries: SweepQueries
    node_queries: NodeQueries
    round_queries: RoundQueries
    retention: Retention
    ledger: Ledger
    spending: Spending
    operations: Operations
    users: Users
    audit: Audit
    secrets: Secrets
    webhooks: Webhooks
    outbox: Outbox
    tokens: Tokens
    projects: Projects

    def wake(self, wake_up: WakeUp, about: str = "") -> None:
        """Send a wake-up after the commit. `about` names the job that the events or logs belong to."""

    def tell(self, fact: Fact) -> None:
        """Report a fact to observers (metrics and traces) after the commit."""


class Transactions(Protocol):
    """The source of transactions. Raises Unavailable if the database does not answer."""

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction that commits when its block ends without an error."""
