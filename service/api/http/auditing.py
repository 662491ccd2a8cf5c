"""Audit of every request that changes something or is refused, without code in the routes.

`context_of` wraps the transactions of a request. Each writes its own entry just before it commits, if it has
changed anything. A refused request changes nothing, so its entry is written after the answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.contract.values.redaction import HIDDEN, command_without_credentials, without_tokens
from headway.contract.views.identity import EVERYWHERE
from service.api.http.addresses import client_address
from service.domain.identity.access import Principal
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.identity.audit import WINDOW, Audited, Refusals
from service.usecases.ports.audit import AuditEntry
from service.usecases.ports.transactions import Transactions

if TYPE_CHECKING:
    from service.api.http.context import ApiContext  # imports this module

log = structlog.get_logger()

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED = frozenset({401, 403})
_SIGNS_IN = "/auth/callback"
_WORK_OF_AGENTS = "/api/v1/agents/"
"""Path prefix of the frequent requests of agents, such as reports and output. They are not audited, because
job events and rounds record what they change.
"""
_RECORDED_TEXTS = frozenset(
    {"name", "role", "project", "policy", "kind", "user", "mode", "per", "period", "scope", "market", "robot"}
)
"""Fields of a request whose text is recorded.

Of other fields only numbers are recorded, because a text can contain anything, including a credential.
"""
_COMMAND = "argv"
"""Field with the command of `headway exec`, which is recorded: the record says what a user ran inside a job."""
_LONGEST = 200
PRINCIPAL = "headway.principal"
_SECRETS = "headway.secrets"


def is_audited(scope: Scope) -> bool:
    """Return True if changes by this request are recorded."""
    if scope["path"].startswith(_WORK_OF_AGENTS):
        return False
    return scope["method"] not in _SAFE or scope["path"] == _SIGNS_IN


def hide(request: Request, values: Collection[str] | None) -> None:
    """Hide secret values in the audit entry's command. None, if they are unknown, hides the whole command."""
    request.scope[_SECRETS] = values


async def audited(request: Request, context: ApiContext) -> Transactions:
    """Return the context's transactions, each of which writes an audit entry."""
    body = await _body(request)

    def entry() -> AuditEntry:
        status = getattr(request.scope.get("route"), "status_code", None) or 200
        return entry_of(request.scope, context, status, context.now(), body)

    return Audited(context.transactions, entry)


def entry_of(
    scope: Scope, context: ApiContext, status: int, now: datetime, body: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Return the audit entry of a request."""
    principal: Principal | None = scope.get(PRINCIPAL)
    path: Mapping[str, Any] = scope.get("path_params") or {}
    given = body or {}
    route = scope.get("route")
    return AuditEntry(
        at=now,
        actor="unknown" if principal is None else principal.name,
        token_id=None if principal is None else principal.token_id,
        action=getattr(route, "operation_id", None)
        or getattr(route, "name", None)
        or scope["method"].lower(),
        target=_clean(scope["path"]),
        project=_project(scope, path, given),
        job=_clean(path["job"]) if "job" in path else None,
        sweep=_clean(path["sweep"]) if "sweep" in path else None,
        status=status,
        address=client_address(scope, context.http.trusted_proxies),
        request_id=str(scope.get("request_id", "")),
        detail={
            key: one
            for key, value in _flat(given)
            if (one := _recorded(key, value, scope.get(_SECRETS))) is not None
        },
    )


def _project(scope: Scope, path: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    if "project" in path:
        return _clean(path["project"])
    if scope["path"].startswith("/api/v1/projects/") and "name" in path:
        return _clean(path["name"])
    project = body.get("project")
    if project is None and scope["path"] in {"/api/v1/jobs", "/api/v1/sweeps"}:
        return "default"
    return _clean(project) if isinstance(project, str) and project != EVERYWHERE else None


def _flat(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a body, and the fields of its nested objects that are not text."""
    for key, value in body.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", one) for name, one in value.items() if not isinstance(one, str))
        else:
            yield key, value


def _recorded(key: str, value: Any, secret: Collection[str] | None) -> Any:
    match value:
        case bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if key in _RECORDED_TEXTS:
            return _clean(value)
        case list() if key == _COMMAND and all(isinstance(one, str) for one in value):
            return HIDDEN if secret is None else _clean(command_without_credentials(value, secret))
    return None


def _clean(text: str) -> str:
    """Return text from a client in a form that can be stored: without tokens, NUL and surrogates, and short."""
    return without_tokens(text)[:_LONGEST].replace("\0", "\ufffd").encode(errors="replace").decode()


async def _body(request: Request) -> Mapping[str, Any] | None:
    """Return the fields of a JSON request that the framework has read already. Uploads stay untouched."""
    if getattr(request.scope.get("route"), "body_field", None) is None:
        return None
    if not request.headers.get("content-type", "").startswith("application/json"):
        return None
    try:
        body = await request.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


class RefusalAudit:
    """Middleware that records refused requests for changes. A flood of refusals is only counted."""

    def __init__(self, app: ASGIApp, context: ApiContext, refusals: Refusals) -> None:
        self._app = app
        self._context = context
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and record it if the answer refuses it."""
        if scope["type"] != "http" or (scope["method"] in _SAFE and scope["path"] != _SIGNS_IN):
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._app(scope, receive, send_and_note)
        if status in _REFUSED:
            entry = entry_of(scope, self._context, status, self._context.now())
            await write(self._context, self._refusals.take(entry))


async def write(context: ApiContext, entries: list[AuditEntry]) -> None:
    """Store entries of refusals. If the database does not answer, they are lost and a log line says so."""
    if not entries:
        return
    try:
        async with context.transactions.begin() as tx:
            for entry in entries:
                await tx.audit.add(entry)
    except HeadwayServiceError as error:
        log.warning("refusals_not_recorded", entries=len(entries), why=error.message)


@asynccontextmanager
async def auditing_floods(context: ApiContext, refusals: Refusals) -> AsyncIterator[None]:
    """Write the counts of floods periodically and at the end of the block."""

    async def write_periodically() -> None:
        while True:
            await asyncio.sleep(WINDOW.total_seconds())
            await write(context, refusals.due(context.now()))

    writing = asyncio.create_task(write_periodically())
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await write(context, refusals.due(context.now() + WINDOW))
