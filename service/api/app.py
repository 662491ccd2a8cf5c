"""The application: routes, errors, request ids, offline docs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from fastapi import FastAPI

from service.api import (
    agents,
    audit,
    auth,
    budgets,
    bundles,
    cluster,
    diagnosis,
    health,
    jobs,
    join_tokens,
    machines,
    meanings,
    metrics,
    node_credentials,
    nodes,
    offers,
    problems,
    projects,
    recommendations,
    secrets,
    simulations,
    storage,
    tokens,
    usage,
    users,
)
from service.api.auditing import TellsOfRefusals, telling_of_floods
from service.api.context import ApiContext
from service.api.document import describe
from service.api.headers import SecurityHeaders
from service.api.limits import Limits, Rates
from service.api.pressure import Gates, Pressure
from service.api.quick import QuickReports
from service.api.reference import Description, install_reference
from service.api.request_ids import RequestId
from service.api.request_times import RequestTimes
from service.usecases.audit import Refusals
from service.usecases.expire import LATE_SHARE
from service.usecases.heartbeat import Heartbeats
from service.usecases.identify import Identities
from service.usecases.log_writers import LogWriters

_DESCRIPTION = """Elastic PyTorch training on machines of your own: submit jobs, watch them grow and shrink.

Errors are `application/problem+json` with a stable `code`. Listings are cursor pages."""

_MODULES = (
    agents,
    node_credentials,
    storage,
    jobs,
    nodes,
    join_tokens,
    machines,
    cluster,
    simulations,
    recommendations,
    offers,
    budgets,
    usage,
    secrets,
    tokens,
    users,
    projects,
    audit,
    diagnosis,
    bundles,
    auth,
    health,
    meanings,
    metrics,
)
"""Whose routes there are, those that are asked for most often first: they are looked up in this order."""


def create_app(context: ApiContext, background: Callable[[], AbstractAsyncContextManager[None]]) -> FastAPI:
    """The API over a context. `background` runs as long as the application does."""
    refusals = Refusals()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with background(), telling_of_floods(context, refusals):
            yield

    # The description and its pages are put in below; those of FastAPI load from the internet.
    app = FastAPI(
        title="Headway",
        version=health.VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
    )
    app.state.context = context
    app.state.identities = Identities(context.transactions, context.api_token, context.now)
    app.state.heartbeats = Heartbeats(
        context.transactions, context.now, usual_s=context.report_every_s, silence=context.silence
    )
    app.state.log_writers = LogWriters(context.transactions, context.now)
    for module in _MODULES:
        app.include_router(module.router)
    problems.install(app)
    describe(app)
    install_reference(app, Description(app.openapi))
    app.state.gates = Gates(late_s=context.silence.silence_s * LATE_SHARE)
    app.add_middleware(
        QuickReports,
        heartbeats=app.state.heartbeats,
        lease_s=context.lease_s,
        take_in=partial(agents.take_in, context, app.state.gates, app.state.heartbeats),
    )
    app.add_middleware(Pressure, gates=app.state.gates)
    app.add_middleware(TellsOfRefusals, context=context, refusals=refusals)
    app.add_middleware(
        Limits,
        max_bundle_bytes=context.max_bundle_bytes,
        rates=Rates(context.http.rate_per_s) if context.http.rate_per_s else None,
        trusted_proxies=context.http.trusted_proxies,
    )
    app.add_middleware(SecurityHeaders, secure=context.http.secure)
    app.add_middleware(RequestTimes, registry=context.registry)
    app.add_middleware(RequestId)
    return app
