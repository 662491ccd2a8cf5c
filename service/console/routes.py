"""The routes of the pages: authorisation, the page as HTML, and its changes as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from headway.contract.spec import NAME_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import JobState
from service.api.http.access import Caller
from service.api.http.context import Context
from service.api.http.render import as_stream
from service.api.http.sessions import csrf_token, session_of
from service.console.failures import PageRoute
from service.console.page_context import PageContext, page_context_of
from service.console.pages.checkpoints import checkpoint_list
from service.console.pages.page import Key, LivePage, Viewer
from service.console.pictures.slot_geometry import DEFAULT_WINDOW, WINDOWS_S
from service.console.screens import PAGES
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
Console = Annotated[PageContext, Depends(page_context_of)]
State = Annotated[str, Query(pattern=f"^({_STATES})?$")]
Project = Annotated[str, Query(pattern=f"^$|{NAME_PATTERN}")]
Window = Annotated[str, Query(pattern=f"^({'|'.join(WINDOWS_S)})?$")]
Cursor = Annotated[str, Query(max_length=500)]
About = Annotated[str, Path(max_length=300)]


def viewer_of(caller: Principal) -> Viewer:
    """Return the caller's rights on pages that are not about one job."""
    return Viewer(
        caller.projects(),
        steers=caller.projects(Role.USER) != frozenset(),
        operates=caller.may(Role.OPERATOR),
    )


@router.get("/")
async def cluster(request: Request, caller: Caller, console: Console) -> Response:
    """Show the cluster: slots and the jobs that hold them."""
    return await show(request, caller, console, "cluster.html", Key("cluster", viewer_of(caller)))


@router.get("/jobs")
async def jobs(
    request: Request,
    caller: Caller,
    console: Console,
    state: State = "",
    project: Project = "",
    cursor: Cursor = "",
) -> Response:
    """Show the jobs, newest first."""
    if project:
        caller.require(Role.VIEWER, project)
    key = Key("jobs", viewer_of(caller), state=state, project=project, cursor=cursor)
    return await show(request, caller, console, "jobs.html", key, state=state or "live", project=project)


@router.get("/jobs/{job}")
async def job(request: Request, context: Context, caller: Caller, console: Console, job: About) -> Response:
    """Show one job with its charts and events."""
    key = await key_of_job(context, caller, job)
    return await show(request, caller, console, "job.html", key)


@router.get("/jobs/{job}/checkpoints")
async def checkpoints(
    request: Request, context: Context, caller: Caller, console: Console, job: About, cursor: Cursor = ""
) -> Response:
    """Show the checkpoints of a job. The page of the job embeds the list of this page."""
    key = await key_of_job(context, caller, job)
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
        **frame(request, caller, console),
        "page": "job",
        "id": view.id,
        "name": view.name,
        "list": checkpoint_list(view.id, found),
    }
    return as_html(console.templates.page("checkpoints.html", values))


async def key_of_job(context: Context, caller: Principal, job: str) -> Key:
    """Return the key of a job's page, if the caller may see the job. Raise NotFound otherwise."""
    async with context.transactions.begin() as tx:
        known = await tx.job_queries.find(job, caller.projects())
    # All viewers with the same rights on the job share one live page, whatever else they may see.
    return Key("job", Viewer(None, steers=caller.may(Role.USER, known.project)), about=known.id)


@router.get("/nodes/{node}")
async def node(
    request: Request, caller: Caller, console: Console, node: About, window: Window = ""
) -> Response:
    """Show one node with its slots."""
    key = Key("node", viewer_of(caller), about=node, window=window or DEFAULT_WINDOW)
    return await show(request, caller, console, "node.html", key)


@router.get("/rounds")
async def rounds(
    request: Request, caller: Caller, console: Console, cursor: Cursor = "", window: Window = ""
) -> Response:
    """Show slots over time, and the decisions behind their changes."""
    key = Key("rounds", viewer_of(caller), cursor=cursor, window=window or DEFAULT_WINDOW)
    return await show(request, caller, console, "rounds.html", key)


@router.get("/simulations")
async def simulations(request: Request, caller: Caller, console: Console, cursor: Cursor = "") -> Response:
    """Show the list of what-if simulations."""
    key = Key("simulations", viewer_of(caller), cursor=cursor)
    kinds = await console.device_kinds()
    return await show(request, caller, console, "simulations.html", key, kinds=kinds)


@router.get("/simulations/{simulation}")
async def simulation(request: Request, caller: Caller, console: Console, simulation: About) -> Response:
    """Show one simulation with its results."""
    key = Key("simulation", viewer_of(caller), about=simulation)
    return await show(request, caller, console, "simulation.html", key)


def _shown(page: LivePage) -> Callable[..., Awaitable[Response]]:
    async def shown(
        request: Request, caller: Caller, console: Console, project: Project = "", cursor: Cursor = ""
    ) -> Response:
        if project:
            caller.require(Role.VIEWER, project)
        key = Key(page.name, viewer_of(caller), project=project, cursor=cursor)
        return await show(request, caller, console, page.template, key, project=project, label=page.label)

    return shown


for _page in PAGES.values():
    router.add_api_route(f"/{_page.name}", _shown(_page))


async def show(
    request: Request, caller: Principal, console: PageContext, template: str, key: Key, **values: Any
) -> Response:
    """Return a page with the present HTML of its fragments."""
    page_version = await console.live_pages.current(key)
    stream = f"/live/{key.page}/{key.about}" if key.about else f"/live/{key.page}"
    values = {
        **frame(request, caller, console),
        "page": key.page,
        "key": key,
        "stream": f"{stream}?{key.query}",
        "version": f"{console.live_pages.epoch}.{page_version.version}",
        "at": console.now(),
        **values,
    }
    return as_html(await asyncio.to_thread(console.templates.page, template, values, page_version))


def as_html(html: str, status: int = 200) -> Response:
    """Return a page, which is not cached."""
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def frame(request: Request, caller: Principal, console: PageContext) -> dict[str, Any]:
    """Return the values that every page has."""
    session = session_of(request)
    return {
        "who": caller.name,
        "sight": viewer_of(caller),
        "csrf": csrf_token(session) if session is not None else "",
        "signed_in": session is not None,
        "done": request.query_params.get("done", ""),
        "stream": "",
        "version": "",
        "assets": console.assets,
        "page": "",
        "added": [(name, page.label) for name, page in PAGES.items()],
    }


@router.get("/live/{page}")
async def live(
    request: Request,
    caller: Caller,
    console: Console,
    page: About,
    state: State = "",
    project: Project = "",
    cursor: Cursor = "",
    window: Window = "",
    since: str = "",
) -> Response:
    """Stream the changes of a page as server-sent events."""
    if project:
        caller.require(Role.VIEWER, project)
    key = Key(page, viewer_of(caller), state=state, project=project, cursor=cursor, window=window)
    return stream_of(request, console, key, since)


@router.get("/live/{page}/{about}")
async def live_about(
    request: Request,
    context: Context,
    caller: Caller,
    console: Console,
    page: About,
    about: About,
    window: Window = "",
    since: str = "",
) -> Response:
    """Stream the changes of a page about one object."""
    key = Key(page, viewer_of(caller), about=about, window=window)
    if page == "job":
        key = await key_of_job(context, caller, about)
    return stream_of(request, console, key, since)


def stream_of(request: Request, console: PageContext, key: Key, since: str) -> Response:
    """Stream the changes since a version of this process, or everything.

    Raise TooBusy at the limit of viewers.
    """
    if console.live_pages.viewers >= MOST_VIEWERS:
        raise TooBusy(f"{MOST_VIEWERS} pages are open, which is as many as this service keeps live", 10.0)
    epoch, _, version = (request.headers.get("last-event-id") or since).partition(".")
    known = (
        int(version) if epoch == console.live_pages.epoch and version.isdecimal() and len(version) < 18 else 0
    )
    return as_stream(_for_a_while(console.live_pages.follow(key, known)))


async def _for_a_while(events: AsyncGenerator[str]) -> AsyncIterator[str]:
    end_s = asyncio.get_running_loop().time() + _LONGEST_S
    async with aclosing(events):
        async for event in events:
            yield event
            if asyncio.get_running_loop().time() > end_s:
                return
