"""The routes of the pages: who asks, which page, and its HTML or its changes as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from headway.contract.identity import Role
from headway.contract.jobs import JobState
from headway.contract.spec import NAME_PATTERN
from service.api.access import Caller
from service.api.context import Context
from service.api.render import as_stream
from service.api.sessions import csrf_token, session_of
from service.console.checkpoints import checkpoint_list
from service.console.desk import Desk, desk_of
from service.console.failures import PageRoute
from service.console.screens import Key, Sight
from service.domain.access import Principal
from service.domain.errors import TooBusy
from service.usecases.checkpoints import list_checkpoints

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_LONGEST_S = 300.0
"""A stream ends after so long, and the browser asks for the next one: so that it is seen whether it still may."""
MOST_VIEWERS = 1000
_CHECKPOINTS = 25
_STATES = "|".join(["live", "all", *(state.value for state in JobState)])
TheDesk = Annotated[Desk, Depends(desk_of)]
State = Annotated[str, Query(pattern=f"^({_STATES})?$")]
Project = Annotated[str, Query(pattern=f"^$|{NAME_PATTERN}")]
Cursor = Annotated[str, Query(max_length=500)]
About = Annotated[str, Path(max_length=300)]


def sight_of(caller: Principal) -> Sight:
    """What pages that are not about one job show them."""
    return Sight(
        caller.projects(),
        steers=caller.projects(Role.USER) != frozenset(),
        operates=caller.may(Role.OPERATOR),
    )


@router.get("/")
async def cluster(request: Request, caller: Caller, desk: TheDesk) -> Response:
    """The cluster: slots and who has them."""
    return await show(request, caller, desk, "cluster.html", Key("cluster", sight_of(caller)))


@router.get("/jobs")
async def jobs(
    request: Request,
    caller: Caller,
    desk: TheDesk,
    state: State = "",
    project: Project = "",
    cursor: Cursor = "",
) -> Response:
    """Jobs, newest first."""
    if project:
        caller.require(Role.VIEWER, project)
    key = Key("jobs", sight_of(caller), state=state, project=project, cursor=cursor)
    return await show(request, caller, desk, "jobs.html", key, state=state or "live", project=project)


@router.get("/jobs/{job}")
async def job(request: Request, context: Context, caller: Caller, desk: TheDesk, job: About) -> Response:
    """One job."""
    key = await key_of_job(context, caller, job)
    return await show(request, caller, desk, "job.html", key)


@router.get("/jobs/{job}/checkpoints")
async def checkpoints(
    request: Request, context: Context, caller: Caller, desk: TheDesk, job: About, cursor: Cursor = ""
) -> Response:
    """The checkpoints of a job. The page of the job takes its list out of this one."""
    key = await key_of_job(context, caller, job)
    async with context.transactions.begin() as tx:
        view = await tx.job_queries.job(key.about)
    found = await list_checkpoints(
        context.checkpoints,
        context.launch.checkpoint_root,
        view,
        cursor=cursor or None,
        limit=_CHECKPOINTS,
    )
    values = {
        **frame(request, caller, desk),
        "page": "job",
        "id": view.id,
        "name": view.name,
        "list": checkpoint_list(view.id, found),
    }
    html = desk.templates.page("checkpoints.html", values)
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})


async def key_of_job(context: Context, caller: Principal, job: str) -> Key:
    """The page of a job that they may see. Raises NotFound."""
    async with context.transactions.begin() as tx:
        known = await tx.job_queries.find(job, caller.projects())
    # One picture for everybody who may do the same with it, whatever else they may see.
    return Key("job", Sight(None, steers=caller.may(Role.USER, known.project)), about=known.id)


@router.get("/nodes/{node}")
async def node(request: Request, caller: Caller, desk: TheDesk, node: About) -> Response:
    """One node."""
    return await show(request, caller, desk, "node.html", Key("node", sight_of(caller), about=node))


@router.get("/rounds")
async def rounds(request: Request, caller: Caller, desk: TheDesk, cursor: Cursor = "") -> Response:
    """What the scheduler decided."""
    key = Key("rounds", sight_of(caller), cursor=cursor)
    return await show(request, caller, desk, "rounds.html", key)


@router.get("/money")
async def money(request: Request, caller: Caller, desk: TheDesk, project: Project = "") -> Response:
    """Budgets, and what was spent."""
    if project:
        caller.require(Role.VIEWER, project)
    key = Key("money", sight_of(caller), project=project)
    return await show(request, caller, desk, "money.html", key, project=project)


@router.get("/simulations")
async def simulations(request: Request, caller: Caller, desk: TheDesk, cursor: Cursor = "") -> Response:
    """What-if questions."""
    key = Key("simulations", sight_of(caller), cursor=cursor)
    kinds = await desk.device_kinds()
    return await show(request, caller, desk, "simulations.html", key, kinds=kinds)


@router.get("/simulations/{simulation}")
async def simulation(request: Request, caller: Caller, desk: TheDesk, simulation: About) -> Response:
    """One of them, and what came out."""
    key = Key("simulation", sight_of(caller), about=simulation)
    return await show(request, caller, desk, "simulation.html", key)


async def show(
    request: Request, caller: Principal, desk: Desk, template: str, key: Key, **values: Any
) -> Response:
    """A page with its pieces as they are now."""
    picture = await desk.board.picture(key)
    stream = f"/live/{key.page}?{request.url.query}" if not key.about else f"/live/{key.page}/{key.about}"
    values = {
        **frame(request, caller, desk),
        "page": key.page,
        "key": key,
        "stream": stream,
        "version": f"{desk.board.epoch}.{picture.version}",
        "at": desk.now(),
        **values,
    }
    html = await asyncio.to_thread(desk.templates.page, template, values, picture)
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def frame(request: Request, caller: Principal, desk: Desk) -> dict[str, Any]:
    """What every page has around it."""
    session = session_of(request)
    return {
        "who": caller.name,
        "sight": sight_of(caller),
        "csrf": csrf_token(session) if session is not None else "",
        "signed_in": session is not None,
        "done": request.query_params.get("done", ""),
        "stream": "",
        "version": "",
        "assets": desk.assets,
        "page": "",
    }


@router.get("/live/{page}")
async def live(
    request: Request,
    caller: Caller,
    desk: TheDesk,
    page: About,
    state: State = "",
    project: Project = "",
    cursor: Cursor = "",
    since: str = "",
) -> Response:
    """Changes of a page as they come, as server-sent events."""
    if project:
        caller.require(Role.VIEWER, project)
    key = Key(page, sight_of(caller), state=state, project=project, cursor=cursor)
    return stream_of(request, desk, key, since)


@router.get("/live/{page}/{about}")
async def live_about(
    request: Request,
    context: Context,
    caller: Caller,
    desk: TheDesk,
    page: About,
    about: About,
    since: str = "",
) -> Response:
    """Changes of a page about one thing."""
    key = Key(page, sight_of(caller), about=about)
    if page == "job":
        key = await key_of_job(context, caller, about)
    return stream_of(request, desk, key, since)


def stream_of(request: Request, desk: Desk, key: Key, since: str) -> Response:
    """The changes since a version of this process; since none, everything. Raises TooBusy."""
    if desk.board.viewers >= MOST_VIEWERS:
        raise TooBusy(f"{MOST_VIEWERS} pages are open, which is as many as this service keeps live", 10.0)
    epoch, _, version = (request.headers.get("last-event-id") or since).partition(".")
    known = int(version) if epoch == desk.board.epoch and version.isdecimal() and len(version) < 18 else 0
    return as_stream(_for_a_while(desk.board.follow(key, known)))


async def _for_a_while(events: AsyncGenerator[str]) -> AsyncIterator[str]:
    end_s = asyncio.get_running_loop().time() + _LONGEST_S
    async with aclosing(events):
        async for event in events:
            yield event
            if asyncio.get_running_loop().time() > end_s:
                return
