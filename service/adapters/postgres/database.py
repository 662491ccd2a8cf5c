"""Transactions over one connection pool. The only place that commits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from service.adapters.postgres.access_queries import PostgresAccessQueries
from service.adapters.postgres.audit import PostgresAudit
from service.adapters.postgres.budgets import PostgresBudgets
from service.adapters.postgres.bundles import PostgresBundles
from service.adapters.postgres.commands import PostgresCommands
from service.adapters.postgres.console_queries import PostgresConsoleQueries
from service.adapters.postgres.decision_queries import PostgresDecisionQueries
from service.adapters.postgres.decisions import PostgresClusterSettings, PostgresDecisions
from service.adapters.postgres.diagnostics import PostgresDiagnostics
from service.adapters.postgres.grants import PostgresAllocations, PostgresGrants
from service.adapters.postgres.history import PostgresHistory
from service.adapters.postgres.identity import (
    PostgresBearers,
    PostgresMembers,
    PostgresProjects,
    PostgresTokens,
    PostgresUsers,
)
from service.adapters.postgres.jobs import PostgresJobs
from service.adapters.postgres.leadership import check_term
from service.adapters.postgres.leases import PostgresLeases
from service.adapters.postgres.ledger import PostgresLedger
from service.adapters.postgres.machines import PostgresMachines
from service.adapters.postgres.money_queries import PostgresMoneyQueries
from service.adapters.postgres.monitoring import PostgresMonitoring
from service.adapters.postgres.node_credentials import (
    PostgresHeldRuns,
    PostgresJoinTokens,
    PostgresNodeCredentials,
    PostgresStorageTickets,
)
from service.adapters.postgres.nodes import PostgresNodes, PostgresSilence
from service.adapters.postgres.quarantines import PostgresQuarantines
from service.adapters.postgres.queries import (
    PostgresHistoryQueries,
    PostgresJobQueries,
    PostgresNodeQueries,
)
from service.adapters.postgres.retention import PostgresOwners, PostgresRetention
from service.adapters.postgres.secrets import PostgresSecrets
from service.adapters.postgres.sign_ins import PostgresSignIns
from service.adapters.postgres.simulations import PostgresSimulations
from service.adapters.postgres.tenants import SHARE_HALF_LIFE_S
from service.adapters.postgres.thinning import PostgresThinning
from service.cancellation import heed_cancellation
from service.domain.errors import Unavailable
from service.usecases import (
    audit_ports,
    health_ports,
    identity_ports,
    money_ports,
    node_ports,
    ports,
    query_ports,
    rental_ports,
    retention_ports,
    secret_ports,
    sign_in_ports,
    simulation_ports,
)
from service.usecases.console_ports import ConsoleQueries
from service.usecases.diagnosis_ports import Diagnostics
from service.usecases.facts import Fact, Tell, tell_nobody
from service.usecases.monitoring_ports import Monitoring
from service.usecases.records import Bell

Ring = Callable[[Bell, str], Awaitable[None]]
"""Rings a bell; must not raise."""


def sqlalchemy_url(url: str) -> str:
    """The configured `postgresql://…` URL, for the asyncpg driver."""
    scheme, _, rest = url.partition("://")
    if scheme.split("+")[0] not in {"postgresql", "postgres"}:
        raise ValueError(f"HEADWAY_DATABASE_URL must start with postgresql://, not {scheme}://")
    place, _, query = rest.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    if "sslrootcert" in dict(options):
        raise ValueError(
            "HEADWAY_DATABASE_URL: take sslrootcert out and name that file in HEADWAY_CA_FILE, which all else goes by too"
        )
    # libpq and asyncpg call it sslmode, asyncpg's own function and so SQLAlchemy ssl.
    asked = [("ssl" if name == "sslmode" else name, value) for name, value in options]
    return f"postgresql+asyncpg://{place}" + (f"?{urlencode(asked, safe='/')}" if asked else "")


def trust(ca_file: Path | None) -> None:
    """Have every connection of this process to a database check its server's certificate by these, where its URL says that
    it must be checked (`sslmode=verify-full`).
    """
    if ca_file is not None:
        os.environ["PGSSLROOTCERT"] = str(ca_file)


class PostgresTransaction:
    """One unit of work: every port over one connection."""

    def __init__(self, connection: AsyncConnection, share_half_life_s: float = SHARE_HALF_LIFE_S) -> None:
        self.unwritten_audit = PostgresAudit(connection)
        self.audit: audit_ports.Audit = self.unwritten_audit
        self.jobs: ports.Jobs = PostgresJobs(connection, self.unwritten_audit)
        self.grants: ports.Grants = PostgresGrants(connection)
        self.allocations: ports.Allocations = PostgresAllocations(connection)
        self.nodes: ports.Nodes = PostgresNodes(connection)
        self.node_credentials: node_ports.NodeCredentials = PostgresNodeCredentials(connection)
        self.join_tokens: node_ports.JoinTokens = PostgresJoinTokens(connection)
        self.held_runs: node_ports.HeldRuns = PostgresHeldRuns(connection)
        self.storage_tickets: node_ports.StorageTickets = PostgresStorageTickets(connection)
        self.machines: rental_ports.Machines = PostgresMachines(connection)
        self.leases: ports.Leases = PostgresLeases(connection)
        self.silence: ports.Silence = PostgresSilence(connection)
        self.commands: ports.Commands = PostgresCommands(connection)
        self.history: ports.History = PostgresHistory(connection)
        self.decisions: ports.Decisions = PostgresDecisions(connection, share_half_life_s)
        self.cluster_settings: ports.ClusterSettings = PostgresClusterSettings(connection)
        self.bundles: ports.Bundles = PostgresBundles(connection)
        self.simulations: simulation_ports.Simulations = PostgresSimulations(connection)
        self.job_queries: query_ports.JobQueries = PostgresJobQueries(connection)
        self.history_queries: query_ports.HistoryQueries = PostgresHistoryQueries(connection)
        self.node_queries: query_ports.NodeQueries = PostgresNodeQueries(connection)
        self.decision_queries: query_ports.DecisionQueries = PostgresDecisionQueries(connection)
        self.retention: retention_ports.Retention = PostgresRetention(connection)
        self.thinning: retention_ports.Thinning = PostgresThinning(connection)
        self.owners: retention_ports.Owners = PostgresOwners(connection)
        self.quarantines: health_ports.Quarantines = PostgresQuarantines(connection)
        self.ledger: money_ports.Ledger = PostgresLedger(connection)
        self.budgets: money_ports.Budgets = PostgresBudgets(connection)
        self.money_queries: money_ports.MoneyQueries = PostgresMoneyQueries(connection)
        self.diagnostics: Diagnostics = PostgresDiagnostics(connection)
        self.monitoring: Monitoring = PostgresMonitoring(connection)
        self.sign_ins: sign_in_ports.SignIns = PostgresSignIns(connection)
        self.console_queries: ConsoleQueries = PostgresConsoleQueries(connection)
        self.bearers: identity_ports.Bearers = PostgresBearers(connection)
        self.tokens: identity_ports.Tokens = PostgresTokens(connection)
        self.users: identity_ports.Users = PostgresUsers(connection)
        self.members: identity_ports.Members = PostgresMembers(connection)
        self.projects: identity_ports.Projects = PostgresProjects(connection)
        self.access_queries: identity_ports.AccessQueries = PostgresAccessQueries(
            connection, share_half_life_s
        )
        self.secrets: secret_ports.Secrets = PostgresSecrets(connection)
        self.secret_rotation: secret_ports.SecretRotation = PostgresSecrets(connection)
        self.rung: dict[tuple[Bell, str], None] = {}
        self.told: list[Fact] = []

    def ring(self, bell: Bell, about: str = "") -> None:
        """Ring after commit."""
        self.rung[(bell, about)] = None

    def tell(self, fact: Fact) -> None:
        """Tell whoever watches after commit."""
        self.told.append(fact)


_SESSION = {
    # A process that stands still in a transaction must not keep rows from all others for ever.
    "idle_in_transaction_session_timeout": "30s",
}


class Database:
    """Where transactions come from. `holder` names this process in the list of the database's sessions. Use of slots that lies
    `share_half_life_s` back counts half for a project's share.
    """

    def __init__(
        self,
        url: str,
        ring: Ring,
        *,
        holder: str = "headway",
        pool_size: int = 16,
        share_half_life_s: float = SHARE_HALF_LIFE_S,
        tell: Tell = tell_nobody,
    ) -> None:
        self.engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=5,
            hide_parameters=True,  # in errors: they are job files, names and addresses
            connect_args={
                "timeout": 5,
                "command_timeout": 30,
                "server_settings": {**_SESSION, "application_name": holder},
            },
        )
        self._ring = ring
        self._tell = tell
        self._share_half_life_s = share_half_life_s

    def begin(self) -> AbstractAsyncContextManager[ports.Transaction]:
        """A transaction that commits when its block ends without an error, and then rings its bells.

        Raises:
            Unavailable: the database does not answer. Nothing was committed, unless the connection
                broke in the commit itself; every caller may therefore ask again.
        """
        return self.transaction(None)

    def of_term(self, term: int) -> ports.Transactions:
        """The transactions of a leader: each that has written something is refused at its commit, with Superseded, unless
        `term` is still the newest.
        """
        return _OfTerm(self, term)

    @asynccontextmanager
    async def transaction(self, term: int | None) -> AsyncIterator[ports.Transaction]:
        """See `begin`; with `term`, see `of_term`."""
        with _told_plainly():
            # Not engine.begin(): a submit that meets a conflict rolls back and asks on in a new transaction.
            async with self.engine.connect() as connection:
                tx = PostgresTransaction(connection, self._share_half_life_s)
                yield tx
                await tx.unwritten_audit.flush()
                if term is not None:
                    await check_term(connection, term)
                await connection.commit()
        for bell, about in tx.rung:
            await self._ring(bell, about)
        for fact in tx.told:
            self._tell(fact)

    async def time(self) -> datetime:
        """What the database's clock says. Raises Unavailable."""
        with _told_plainly():
            async with self.engine.connect() as connection:
                said: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
                return said

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


@dataclass(frozen=True, slots=True)
class _OfTerm:
    """Implements `usecases.ports.Transactions` for a leader."""

    database: Database
    term: int

    def begin(self) -> AbstractAsyncContextManager[ports.Transaction]:
        """See `Database.of_term`."""
        return self.database.transaction(self.term)


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Turns what a driver says of a database that does not answer into Unavailable, or, where this task was cancelled and
    that is what came of it in the driver, into what it was.
    """
    try:
        yield
    except _NO_ANSWER as error:
        heed_cancellation()
        raise _unavailable(error) from error
    except DBAPIError as error:
        if error.connection_invalidated or _is_shutdown(error):
            heed_cancellation()
            raise _unavailable(error) from error
        raise


_NO_ANSWER = (
    OSError,
    TimeoutError,
    PoolTimeout,
    asyncpg.PostgresConnectionError,
    OperationalError,
    InterfaceError,
)
_SHUTDOWN_STATES = {"57P01", "57P02", "57P03", "53300", "08000", "08003", "08006", "40001", "40P01"}
"""SQLSTATEs that pass: the server stops or starts, is full, lost us, or asks to try again."""


def _is_shutdown(error: SQLAlchemyError) -> bool:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state in _SHUTDOWN_STATES


def _unavailable(error: BaseException) -> Unavailable:
    return Unavailable(
        f"the database does not answer ({type(error).__name__}); nothing was changed, try again"
    )
