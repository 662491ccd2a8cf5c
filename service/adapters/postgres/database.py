"""Transactions over one connection pool. No other module commits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import asyncpg
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from service.adapters.postgres.engine.leadership import check_term
from service.adapters.postgres.engine.session import (
    Session,
    Statement,
    open_session,
    replace_closed_connections,
)
from service.adapters.postgres.identity.audit import PostgresAudit
from service.adapters.postgres.identity.projects import PostgresProjects
from service.adapters.postgres.identity.secrets import PostgresSecrets
from service.adapters.postgres.identity.tokens import PostgresTokens
from service.adapters.postgres.identity.users import PostgresUsers
from service.adapters.postgres.jobs.chains import PostgresChains
from service.adapters.postgres.jobs.grants import PostgresGrants
from service.adapters.postgres.jobs.jobs import PostgresJobs
from service.adapters.postgres.jobs.sweeps import PostgresSweepQueries, PostgresSweeps
from service.adapters.postgres.jobs.views import PostgresJobQueries
from service.adapters.postgres.money.ledger import PostgresLedger
from service.adapters.postgres.money.views import PostgresSpending
from service.adapters.postgres.nodes.credentials import PostgresNodeCredentials
from service.adapters.postgres.nodes.links import PostgresHostLinks
from service.adapters.postgres.nodes.nodes import PostgresNodes
from service.adapters.postgres.nodes.views import PostgresNodeQueries
from service.adapters.postgres.notifications.webhooks import PostgresOutbox, PostgresWebhooks
from service.adapters.postgres.rental.machines import PostgresMachines
from service.adapters.postgres.rounds.commands import PostgresCommands
from service.adapters.postgres.rounds.decisions import PostgresRounds
from service.adapters.postgres.rounds.views import PostgresRoundQueries
from service.adapters.postgres.simulations.simulations import PostgresSimulations
from service.adapters.postgres.storage.bundles import PostgresBundles
from service.adapters.postgres.upkeep.operations import PostgresOperations
from service.adapters.postgres.upkeep.retention import PostgresRetention
from service.cancellation import heed_cancellation
from service.domain.cluster.contention_rules import USUAL, ContentionRules
from service.domain.cluster.snapshot import SHARE_HALF_LIFE_S
from service.domain.shared.connections import CONNECTIONS
from service.domain.shared.errors import Unavailable
from service.usecases.ports.facts import Fact, Tell, WakeUp, ignore_fact
from service.usecases.ports.transactions import Transaction, Transactions

SendWakeUp = Callable[[WakeUp, str], Awaitable[None]]
"""Function that wakes the listeners of a wake-up. It must not raise."""


def sqlalchemy_url(url: str) -> str:
    """Return the configured `postgresql://…` URL in the form for the asyncpg driver.

    Raises:
        ValueError: the scheme is not PostgreSQL's, or the URL has `sslrootcert`.
    """
    scheme, _, rest = url.partition("://")
    if scheme.split("+")[0] not in {"postgresql", "postgres"}:
        raise ValueError(f"HEADWAY_DATABASE_URL must start with postgresql://, not {scheme}://")
    place, _, query = rest.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    if "sslrootcert" in dict(options):
        raise ValueError(
            "HEADWAY_DATABASE_URL: remove sslrootcert and name its file in HEADWAY_CA_FILE, which all connections use"
        )
    # libpq and asyncpg's URLs call the option sslmode. SQLAlchemy passes it to asyncpg's function, which
    # calls it ssl.
    renamed = [("ssl" if name == "sslmode" else name, value) for name, value in options]
    return f"postgresql+asyncpg://{place}" + (f"?{urlencode(renamed, safe='/')}" if renamed else "")


def trust(ca_file: Path | None) -> None:
    """Check the certificates of database servers against this file, in every connection of the process.

    It has an effect where the database URL asks for the check (`sslmode=verify-full`).
    """
    if ca_file is not None:
        os.environ["PGSSLROOTCERT"] = str(ca_file)


class PostgresTransaction(Transaction):
    """Unit of work that gives every port the same session."""

    def __init__(
        self,
        session: Session,
        share_half_life_s: float = SHARE_HALF_LIFE_S,
        contention: ContentionRules = USUAL,
    ) -> None:
        self.unwritten_audit = self.audit = PostgresAudit(session)
        self.jobs = PostgresJobs(session, self.unwritten_audit)
        self.grants = PostgresGrants(session)
        self.chains = PostgresChains(session)
        self.sweeps = PostgresSweeps(session)
        self.sweep_queries = PostgresSweepQueries(session)
        self.job_queries = PostgresJobQueries(session)
        self.nodes = PostgresNodes(session)
        self.credentials = PostgresNodeCredentials(session)
        self.node_queries = PostgresNodeQueries(session)
        self.links = PostgresHostLinks(session)
        self.rounds = PostgresRounds(session, share_half_life_s, contention)
        self.commands = PostgresCommands(session)
        self.round_queries = PostgresRoundQueries(session)
        self.machines = PostgresMachines(session)
        self.ledger = PostgresLedger(session)
        self.spending = PostgresSpending(session)
        self.tokens = PostgresTokens(session)
        self.users = PostgresUsers(session)
        self.projects = PostgresProjects(session, share_half_life_s)
        self.secrets = PostgresSecrets(session)
        self.webhooks = PostgresWebhooks(session)
        self.outbox = PostgresOutbox(session)
        self.bundles = PostgresBundles(session)
        self.simulations = PostgresSimulations(session)
        self.retention = PostgresRetention(session)
        self.operations = PostgresOperations(session)
        self.wake_ups: dict[tuple[WakeUp, str], None] = {}
        self.facts: list[Fact] = []

    def wake(self, wake_up: WakeUp, about: str = "") -> None:
        self.wake_ups[(wake_up, about)] = None

    def tell(self, fact: Fact) -> None:
        self.facts.append(fact)


_TIME = Statement("SELECT clock_timestamp() AS now")
_SESSION = {
    # A process that hangs inside a transaction must not hold its row locks for ever.
    "idle_in_transaction_session_timeout": "30s"
}


class Database:
    """Source of transactions.

    `holder` is this process's `application_name` in the database. Slot use that is `share_half_life_s` old
    counts half in a project's share. Scheduling rounds apply the rules of `contention`.
    """

    def __init__(
        self,
        url: str,
        send_wake_up: SendWakeUp,
        *,
        holder: str = "headway",
        share_half_life_s: float = SHARE_HALF_LIFE_S,
        contention: ContentionRules = USUAL,
        tell: Tell = ignore_fact,
    ) -> None:
        self.pool: AsyncEngine = create_async_engine(
            sqlalchemy_url(url),
            isolation_level="AUTOCOMMIT",  # sessions begin and end their transactions themselves
            pool_size=CONNECTIONS.pool,
            max_overflow=0,
            pool_timeout=5,
            hide_parameters=True,  # errors must not show job files, names and addresses
            connect_args={
                "timeout": 5,
                "command_timeout": 30,
                "server_settings": {**_SESSION, "application_name": holder},
            },
        )
        replace_closed_connections(self.pool)
        self.engine = self.pool.execution_options(isolation_level="READ COMMITTED")
        """Engine on the same connections whose transactions SQLAlchemy begins and ends."""
        self._holder = holder
        self._send_wake_up = send_wake_up
        self._tell = tell
        self._share_half_life_s = share_half_life_s
        self._contention = contention

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Return a session on a connection of the pool, for its caller to commit."""
        return open_session(self.pool)

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """Return a transaction that commits, then sends its wake-ups, when its block ends without an error.

        Raises:
            Unavailable: the database does not answer. Nothing was committed, unless the connection broke
                during the commit; every caller must therefore be able to retry.
        """
        return self.transaction(None)

    def of_term(self, term: int) -> Transactions:
        """Return the transactions of the leader of `term`.

        A transaction that has written something is refused at its commit, with Superseded, unless `term` is
        still the newest term, and this process has it.
        """
        return _OfTerm(self, term)

    @asynccontextmanager
    async def transaction(self, term: int | None) -> AsyncIterator[Transaction]:
        """Run a transaction as in `begin`; with `term`, as in `of_term`."""
        with _driver_errors_as_unavailable():
            async with self.session() as session:
                tx = PostgresTransaction(session, self._share_half_life_s, self._contention)
                yield tx
                await tx.unwritten_audit.flush()
                if term is not None:
                    await check_term(session, term, self._holder)
                await session.commit()
        for wake_up, about in tx.wake_ups:
            await self._send_wake_up(wake_up, about)
        for fact in tx.facts:
            self._tell(fact)

    async def time(self) -> datetime:
        """Return the time of the database's clock. Raises Unavailable."""
        with _driver_errors_as_unavailable():
            async with self.session() as session:
                (row,) = await session.fetch_alone(_TIME)
                now: datetime = row.now
                return now

    async def close(self) -> None:
        """Close every connection of the pool."""
        await self.pool.dispose()


@dataclass(frozen=True, slots=True)
class _OfTerm(Transactions):
    """Transactions of one leader's term."""

    database: Database
    term: int

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        return self.database.transaction(self.term)


@contextmanager
def _driver_errors_as_unavailable() -> Iterator[None]:
    """Turn a driver's error about a database that does not answer into Unavailable.

    If the driver's error results from the cancellation of this task, raise the cancellation instead.
    """
    try:
        yield
    except _NO_ANSWER as error:
        heed_cancellation()
        raise _unavailable(error) from error
    except asyncpg.PostgresError as error:
        if error.sqlstate in _SHUTDOWN_STATES:
            heed_cancellation()
            raise _unavailable(error) from error
        raise


_NO_ANSWER = (
    OSError,
    TimeoutError,
    PoolTimeout,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_SHUTDOWN_STATES = {
    *("57P01", "57P02", "57P03", "57P05", "25P03"),  # the server stops, starts, or has ended the session
    *("53300", "08000", "08003", "08006"),  # it is full, or the connection is lost
    *("40001", "40P01"),  # it asks for a retry
}
"""SQLSTATEs of failures that pass."""


def _unavailable(error: BaseException) -> Unavailable:
    return Unavailable(
        f"the database does not answer ({type(error).__name__}); nothing was changed, try again"
    )
