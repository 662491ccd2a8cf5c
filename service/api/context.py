"""What the routes need, handed in by the composition root, and the checks of tokens."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Protocol, TypeAlias

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry
from structlog.contextvars import bind_contextvars

from service.api import auditing
from service.api.pressure import Gates
from service.domain.errors import WrongToken
from service.domain.silence import SilenceRule
from service.http_settings import HttpSettings
from service.usecases.checkpoints import CheckpointStore
from service.usecases.facts import BegunTrace
from service.usecases.heartbeat import Heartbeats
from service.usecases.join import digest_token
from service.usecases.log_writers import LogWriters
from service.usecases.node_credentials import authenticate
from service.usecases.node_ports import NodeAccess
from service.usecases.offers import OfferBook
from service.usecases.orders import Launch
from service.usecases.outside_ports import Storage
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import Bell
from service.usecases.secret_ports import KeyRing
from service.usecases.sign_in_ports import IdentityProvider


class Bells(Protocol):
    """Wake others, and wait to be woken."""

    async def ring(self, bell: Bell, about: str = "") -> None:
        """Ring soon."""
        ...

    def heard(self, *bells: tuple[Bell, str]) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set when one of the bells rings."""
        ...

    def is_heard(self, bell: Bell, about: str) -> bool:
        """Whether somebody in this process waits for it."""
        ...


class Readiness(Protocol):
    """Whether this process can serve."""

    async def problems(self) -> list[str]:
        """What is not well: database, schema, Redis. Empty when ready."""
        ...


def no_trace(_: str, __: str | None) -> None:
    """Nobody collects traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Everything that the routes use."""

    transactions: Transactions
    storage: Storage
    checkpoints: CheckpointStore
    bells: Bells
    readiness: Readiness
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
    """Of secrets; None: the service keeps none."""
    offers: OfferBook = field(default_factory=OfferBook)
    http: HttpSettings = field(default_factory=HttpSettings)
    provider: IdentityProvider | None = None
    """Where people sign in; None: with tokens only."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    """What this process counts of itself."""
    begin_trace: Callable[[str, str | None], BegunTrace | None] = no_trace
    """The trace of a job that is submitted, by its id and the `traceparent` of the request; None: it is not traced."""


async def context_of(request: Request) -> ApiContext:
    """The context that the application was built with; its transactions tell of what the request changes."""
    context: ApiContext = request.app.state.context
    if not auditing.is_told(request.scope):
        return context
    return replace(context, transactions=await auditing.audited(request, context))


async def heartbeats_of(request: Request) -> Heartbeats:
    """What renews leases in this process."""
    heartbeats: Heartbeats = request.app.state.heartbeats
    return heartbeats


async def log_writers_of(request: Request) -> LogWriters:
    """Who may write which log, as far as this process knows."""
    writers: LogWriters = request.app.state.log_writers
    return writers


async def gates_of(request: Request) -> Gates:
    """What bounds the work in this process."""
    gates: Gates = request.app.state.gates
    return gates


def new_id(prefix: str, now: datetime) -> str:
    """An id that sorts by time: milliseconds in base 32, then 50 random bits."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    number = (int(now.timestamp() * 1000) << 50) | secrets.randbits(50)
    digits = [alphabet[(number >> shift) & 31] for shift in range(95, -5, -5)]
    return prefix + "".join(digits).lstrip("0")


_bearer = HTTPBearer(auto_error=False, description="HEADWAY_TOKEN, or the token of a node")
Credentials: TypeAlias = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
Context: TypeAlias = Annotated[ApiContext, Depends(context_of)]
Places: TypeAlias = Annotated[Gates, Depends(gates_of)]
LeaseRenewal: TypeAlias = Annotated[Heartbeats, Depends(heartbeats_of)]
Writers: TypeAlias = Annotated[LogWriters, Depends(log_writers_of)]
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(description="From `next_cursor` of the page before")]
IdempotencyKey: TypeAlias = Annotated[
    str | None, Header(min_length=1, max_length=255, description="Makes a repeated POST harmless")
]


def _is(credentials: HTTPAuthorizationCredentials | None, token: str) -> bool:
    given = credentials.credentials if credentials else ""
    return hmac.compare_digest(given.encode(), token.encode())


def may_join(context: ApiContext, credentials: HTTPAuthorizationCredentials | None) -> bool:
    """Whether this is the join token that any host may join with, if there is one."""
    return bool(context.join_token) and _is(credentials, context.join_token)


async def require_monitor(context: Context, credentials: Credentials) -> None:
    """Let whoever monitors the service pass: everybody, unless there is a token for it. Raises WrongToken."""
    if context.http.metrics_token and not _is(credentials, context.http.metrics_token):
        raise WrongToken("the token of the metrics is another one: HEADWAY_METRICS_TOKEN of the service.")


async def require_node(context: Context, credentials: Credentials, node_id: str) -> str:
    """Let only the agent of `node_id` pass; returns the node's id."""
    async with context.transactions.begin() as tx:
        await check_node(context, tx, credentials, node_id)
    return node_id


async def check_node(
    context: ApiContext, tx: Transaction, credentials: HTTPAuthorizationCredentials | None, node_id: str
) -> None:
    """Raise WrongToken unless these are the credentials of the agent of `node_id`."""
    await authenticate(tx, node_id, digest_of(credentials), context.now())
    bind_contextvars(node=node_id)


def digest_of(credentials: HTTPAuthorizationCredentials | None) -> str:
    """Of the bearer token that was shown, or of none."""
    return digest_token(credentials.credentials if credentials else "")
