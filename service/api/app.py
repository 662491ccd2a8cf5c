"""The application: routes, errors, request ids, offline documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib import import_module
from pkgutil import walk_packages

from fastapi import APIRouter, FastAPI

from service.api import routes
from service.api.http import problems
from service.api.http.auditing import RefusalAudit, auditing_floods
from service.api.http.context import ApiContext
from service.api.http.document import describe
from service.api.http.headers import SecurityHeaders
from service.api.http.limits import Rates, RequestLimits
from service.api.http.pressure import Gates, Pressure
from service.api.http.quick import QuickReports
from service.api.http.reference import ApiDescription, install_reference
from service.api.http.request_ids import RequestId
from service.api.http.request_times import RequestTimes
from service.api.http.routing import add_routes
from service.api.http.storable import StorableText
from service.api.routes.jobs import graph, jobs, outputs
from service.api.routes.nodes import agents, nodes, storage
from service.api.routes.nodes import credentials as node_credentials
from service.api.routes.upkeep import health
from service.usecases.identity.audit import Refusals
from service.usecases.identity.identify import Identities
from service.usecases.nodes.expire import LATE_SHARE
from service.usecases.reports.heartbeat import Heartbeats
from service.usecases.storage.log_writers import LogWriters

_DESCRIPTION = """Elastic PyTorch training on machines of your own: submit jobs, watch them grow and shrink.

Errors are `application/problem+json` with a stable `code`. Listings are cursor pages."""

_FREQUENT = (agents, node_credentials, storage, jobs, graph, outputs, nodes)
"""Modules of the most frequent routes, which come first, because FastAPI searches them in order."""


def _routers() -> list[APIRouter]:
    """Return the routers of all modules below `routes`: each module that has one adds its routes."""
    names = [found.name for found in walk_packages(routes.__path__, f"{routes.__name__}.") if not found.ispkg]
    modules = dict.fromkeys([*_FREQUENT, *map(import_module, sorted(names))])
    return [module.router for module in modules if hasattr(module, "router")]


def create_app(context: ApiContext, background: Callable[[], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Return the API over a context. `background` runs as long as the application does."""
    refusals = Refusals()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with background(), auditing_floods(context, refusals):
            yield

    # The description and its pages are installed below, because FastAPI's own pages load from the internet.
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
        context.transactions,
        context.now,
        launch=context.launch,
        usual_s=context.report_every_s,
        silence=context.silence,
    )
    app.state.log_writers = LogWriters(context.transactions, context.now)
    add_routes(app, *_routers())
    problems.install(app)
    describe(app)
    install_reference(app, ApiDescription(app.openapi))
    app.state.gates = Gates(late_s=context.silence.silence_s * LATE_SHARE)
    app.add_middleware(
        QuickReports,
        heartbeats=app.state.heartbeats,
        lease_s=context.lease_s,
        take_in=partial(agents.take_in, context, app.state.gates, app.state.heartbeats),
    )
    app.add_middleware(Pressure, gates=app.state.gates)
    app.add_middleware(StorableText)
    app.add_middleware(RefusalAudit, context=context, refusals=refusals)
    app.add_middleware(
        RequestLimits,
        max_bundle_bytes=context.max_bundle_bytes,
        rates=Rates(context.http.rate_per_s) if context.http.rate_per_s else None,
        trusted_proxies=context.http.trusted_proxies,
    )
    app.add_middleware(SecurityHeaders, secure=context.http.secure)
    app.add_middleware(RequestTimes, registry=context.registry)
    app.add_middleware(RequestId)
    return app
