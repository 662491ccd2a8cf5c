"""The routes of the pages: authorisation, the page as HTML, and its changes as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import JobState
from service.api.http.context import Context
from service.api.http.render import as_stream
from service.console.failures import PageRoute
from service.console.page_readers import PAGES
from service.console.pages.checkpoints import checkpoint_list
from service.console.pages.page import Key, LivePage, Viewer
from service.console.pictures.slot_geometry import DEFAULT_WINDOW, WINDOWS_S
from service.console.visit import PageVisit, Visit
from service.domain.identity.access import Principal
from service.domain.shared.errors import TooBusy
from service.usecases.storage.checkpoints import list_checkpoints

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_LONGEST_S = 300.0
"""Longest duration of a stream in seconds. The browser then reconnects, and its authorisation is checked
again."""
MOST_VIEWERS = 1000
_CHECKPOINTS = 25
_STATES = "|".join(["live", "all", *(state.value for state in JobState)])
State = Annotated[str, Query(pattern=f"^({_STATES})?$")]
Project = Annotated[str, Query(pattern=f"^$|{NAME_PATTERN}")]
Owner = Annotated[str, Query(max_length=300)]
Window = Annotated[str, Query(pattern=f"^({'|'.join(WINDOWS_S)})?$")]
Cursor = Annotated[str, Query(max_length=500)]
Order = Annotated[str, Query(pattern=r"^(-?(trial|state|value|parameter\.[A-Za-z_][A-Za-z0-9_]{0,63}))?$")]
About = Annotated[str, Path(max_length=300)]


@router.get("/")
async def cluster(visit: Visit) -> Response:
    """Show the cluster: slots and the jobs that hold them."""
    return await visit.show("cluster.html", Key("cluster", visit.viewer))


@router.get("/jobs")
async def jobs(
    visit: Visit,
    state: State = "",
    project: Project = "",
    owner: Owner = "",
    cursor: Cursor = "",
) -> Response:
    """Show the jobs, newest first: all, or those of a state, of a project or of an owner."""
    if project:
        visit.caller.require(Role.VIEWER, project)
    key = Key("jobs", visit.viewer, state=state, project=project, owner=owner, cursor=cursor)
    return await visit.show("jobs.html", key, state=state or "live", project=project, owner=owner)


@router.get("/jobs/{job}")
async def job(context: Context, visit: Visit, job: About) -> Response:
    """Show one job with its charts and events."""
    key = await key_of_job(context, visit.caller, job)
    return await visit.show("job.html", key)


@router.get("/jobs/{job}/checkpoints")
async def checkpoints(context: Context, visit: Visit, job: About, cursor: Cursor = "") -> Response:
    """Show the checkpoints of a job. The page of the job embeds the list of this page."""
    key = await key_of_job(context, visit.caller, job)
    async with context.transactions.begin() as tx:
        view = await tx.job_queries.job(key.about)
    found = await list_checkpoints(
        context.storage,
        context.launch.checkpoint_root,
        view,
        cursor=cursor or None,
        limit=_CHECKPOINTS,
    )
    values = {
        "page": "job",
        "id": view.id,
        "name": view.name,
        "list": checkpoint_list(view.id, found),
    }
    return visit.page("checkpoints.html", values)


async def key_of_job(context: Context, caller: Principal, job: str) -> Key:
    """Return the key of a job's page, if the caller may see the job. Raise NotFound otherwise."""
    async with context.transactions.begin() as tx:
        known = await tx.job_queries.find(job, caller.projects())
    # All viewers with the same rights on the job share one live page, whatever else they may see.
    return Key("job", Viewer(None, may_control=caller.may(Role.USER, known.project)), about=known.id)


@router.get("/nodes/{node}")
async def node(visit: Visit, node: About, window: Window = "") -> Response:
    """Show one node with its slots."""
    key = Key("node", visit.viewer, about=node, window=window or DEFAULT_WINDOW)
    return await visit.show("node.html", key)


@router.get("/rounds")
async def rounds(visit: Visit, cursor: Cursor = "", window: Window = "") -> Response:
    """Show slots over time, and the decisions behind their changes."""
    key = Key("rounds", visit.viewer, cursor=cursor, window=window or DEFAULT_WINDOW)
    return await visit.show("rounds.html", key)


@router.get("/simulations")
async def simulations(visit: Visit, cursor: Cursor = "") -> Response:
    """Show the list of what-if simulations."""
    key = Key("simulations", visit.viewer, cursor=cursor)
    kinds = await visit.console.device_kinds()
    return await visit.show("simulations.html", key, kinds=kinds)


@router.get("/simulations/{simulation}")
async def simulation(visit: Visit, simulation: About) -> Response:
    """Show one simulation with its results."""
    key = Key("simulation", visit.viewer, about=simulation)
    return await visit.show("simulation.html", key)


@router.get("/sweeps/{sweep}")
async def sweep(context: Context, visit: Visit, sweep: About, order: Order = "") -> Response:
    """Show one sweep with all its trials."""
    key = await key_of_sweep(context, visit.caller, sweep, order)
    return await visit.show("sweep.html", key)


async def key_of_sweep(context: Context, caller: Principal, sweep: str, order: str) -> Key:
    """Return the key of a sweep's page, if the caller may see the sweep. Raise NotFound otherwise."""
    async with context.transactions.begin() as tx:
        known = await tx.sweep_queries.find(sweep, caller.projects())
    may_control = caller.may(Role.USER, known.project)
    return Key("sweep", Viewer(None, may_control=may_control), about=known.id, order=order)


def _shown(page: LivePage) -> Callable[..., Awaitable[Response]]:
    async def shown(visit: Visit, project: Project = "", cursor: Cursor = "") -> Response:
        if project:
            visit.caller.require(Role.VIEWER, project)
        key = Key(page.name, visit.viewer, project=project, cursor=cursor)
        return await visit.show(page.template, key, project=project, label=page.label)

    return shown


for _page in PAGES.values():
    router.add_api_route(f"/{_page.name}", _shown(_page))


@router.get("/live/{page}")
async def live(
    visit: Visit,
    page: About,
    state: State = "",
    project: Project = "",
    owner: Owner = "",
    cursor: Cursor = "",
    window: Window = "",
    since: str = "",
) -> Response:
    """Stream the changes of a page as server-sent events."""
    if project:
        visit.caller.require(Role.VIEWER, project)
    key = Key(page, visit.viewer, state=state, project=project, owner=owner, cursor=cursor, window=window)
    return stream_of(visit, key, since)


@router.get("/live/{page}/{about}")
async def live_about(
    context: Context,
    visit: Visit,
    page: About,
    about: About,
    window: Window = "",
    order: Order = "",
    since: str = "",
) -> Response:
    """Stream the changes of a page about one object."""
    key = Key(page, visit.viewer, about=about, window=window)
    if page == "job":
        key = await key_of_job(context, visit.caller, about)
    elif page == "sweep":
        key = await key_of_sweep(context, visit.caller, about, order)
    return stream_of(visit, key, since)


def stream_of(visit: PageVisit, key: Key, since: str) -> Response:
    """Stream the changes since a version of this process, or everything.

    Raise TooBusy at the limit of viewers.
    """
    live_pages = visit.console.live_pages
    if live_pages.viewers >= MOST_VIEWERS:
        raise TooBusy(f"{MOST_VIEWERS} pages are open, which is as many as this service keeps live", 10.0)
    epoch, _, version = (visit.request.headers.get("last-event-id") or since).partition(".")
    known = int(version) if epoch == live_pages.epoch and version.isdecimal() and len(version) < 18 else 0
    return as_stream(_for_a_while(live_pages.follow(key, known)))


async def _for_a_while(events: AsyncGenerator[str]) -> AsyncIterator[str]:
    end_s = asyncio.get_running_loop().time() + _LONGEST_S
    async with aclosing(events):
        async for event in events:
            yield event
            if asyncio.get_running_loop().time() > end_s:
                return
