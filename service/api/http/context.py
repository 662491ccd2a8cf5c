"""Dependencies of the routes, supplied by the composition root, and the checks of tokens."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeAlias

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry
from structlog.contextvars import bind_contextvars

from headway.contract.values.text import GivenText
from service.api.http.auditing import audited, is_audited
from service.api.http.pressure import Gates
from service.domain.life.life import Launch
from service.domain.nodes.silence import SilenceRule
from service.domain.policies.registry import Policies
from service.domain.rental.rental_targets import RentalRules
from service.http_settings import HttpSettings
from service.usecases.nodes.credentials import authenticate
from service.usecases.nodes.join import digest_token
from service.usecases.ports.credentials import NodeAccess
from service.usecases.ports.executions import Executions
from service.usecases.ports.facts import BegunTrace, WakeUps
from service.usecases.ports.identity import IdentityProvider
from service.usecases.ports.secrets import KeyRing
from service.usecases.ports.storage import StoredObjects
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.ports.upkeep import Standstills
from service.usecases.rental.offers import OfferBook
from service.usecases.reports.heartbeat import Heartbeats
from service.usecases.storage.log_writers import LogWriters


class Readiness(Protocol):
    """Readiness of this process to serve requests."""

    async def problems(self) -> list[str]:
        """Return the problems of database, schema and Redis; empty when ready."""
        ...


def no_trace(_: str, __: str | None) -> None:
    """Return None, because traces are not collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Dependencies of the routes, supplied by the composition root."""

    transactions: Transactions
    storage: StoredObjects
    wake_ups: WakeUps
    readiness: Readiness
    standstills: Standstills
    executions: Executions
    policies: Policies
    launch: Launch
    api_token: str
    join_token: str
    agent_redis_url: str
    access: NodeAccess
    stream_of: Callable[[str], str]
    lease_s: float
    report_every_s: float
    silence: SilenceRule
    max_bundle_bytes: int
    usd_per_slot_h: Mapping[str, float]
    now: Callable[[], datetime]
    keys: KeyRing | None = None
    """Key ring of secrets; None if the service stores no secrets."""
    offers: OfferBook = field(default_factory=OfferBook)
    rental: RentalRules = field(default_factory=RentalRules)
    """Limits on rented machines."""
    http: HttpSettings = field(default_factory=HttpSettings)
    provider: IdentityProvider | None = None
    """Identity provider for sign-ins; None if users sign in with tokens only."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    """Metrics of this process itself."""
    admissions: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of this process for submits of jobs that are promised slots."""
    begin_trace: Callable[[str, str | None], BegunTrace | None] = no_trace
    """Function from a new job's id and the request's `traceparent` to its trace; None: no trace."""


async def context_of(request: Request) -> ApiContext:
    """Return the application's context. For audited requests its transactions write audit entries."""
    context: ApiContext = request.app.state.context
    if not is_audited(request.scope):
        return context
    return replace(context, transactions=await audited(request, context))


def _from_state(name: str) -> Any:
    """Return the dependency on an attribute of the application's state, which all requests of this process share."""

    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(read)


def new_id(prefix: str, now: datetime) -> str:
    """Return an id that sorts by time: milliseconds in base 32, then 50 random bits."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    number = (int(now.timestamp() * 1000) << 50) | secrets.randbits(50)
    digits = [alphabet[(number >> shift) & 31] for shift in range(95, -5, -5)]
    return prefix + "".join(digits).lstrip("0")


bearer = HTTPBearer(auto_error=False, description="HEADWAY_TOKEN, or the token of a node")
Credentials: TypeAlias = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
Context: TypeAlias = Annotated[ApiContext, Depends(context_of)]
Places: TypeAlias = Annotated[Gates, _from_state("gates")]
LeaseRenewal: TypeAlias = Annotated[Heartbeats, _from_state("heartbeats")]
Writers: TypeAlias = Annotated[LogWriters, _from_state("log_writers")]
IDEMPOTENCY_BYTES = 255
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page")]
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    Header(
        min_length=1, max_length=IDEMPOTENCY_BYTES, description="Key that makes a repeated POST idempotent"
    ),
]


def _matches(credentials: HTTPAuthorizationCredentials | None, token: str) -> bool:
    given = credentials.credentials if credentials else ""
    return hmac.compare_digest(given.encode(), token.encode())


def may_join(context: ApiContext, credentials: HTTPAuthorizationCredentials | None) -> bool:
    """Return True if these credentials are the permanent join token, if the service has one."""
    return bool(context.join_token) and _matches(credentials, context.join_token)


def may_monitor(context: ApiContext, credentials: HTTPAuthorizationCredentials | None) -> bool:
    """Return True if metrics are public, or these credentials are the token of monitoring, if the service has one."""
    token = context.http.metrics_token
    return context.http.metrics_public or (bool(token) and _matches(credentials, token))


async def require_node(context: Context, credentials: Credentials, node_id: GivenText) -> str:
    """Let only the agent of `node_id` pass, and return the node's id. Raises WrongToken."""
    async with context.transactions.begin() as tx:
        await check_node(context, tx, credentials, node_id)
    return node_id


async def check_node(
    context: ApiContext, tx: Transaction, credentials: HTTPAuthorizationCredentials | None, node_id: str
) -> None:
    """Raise WrongToken unless the credentials belong to the agent of `node_id`."""
    await authenticate(tx, node_id, digest_of(credentials), context.now())
    bind_contextvars(node=node_id)


def digest_of(credentials: HTTPAuthorizationCredentials | None) -> str:
    """Return the digest of the bearer token, or of an empty token without one."""
    return digest_token(credentials.credentials if credentials else "")
