"""`/api/v1/sweeps`: groups of jobs that differ in their parameters."""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from headway.contract.spec_sweep import SweepSpec
from headway.contract.views.identity import Role
from headway.contract.views.jobs import CancelRequest, JobPatch, Page
from headway.contract.views.sweeps import SweepSummary, SweepView
from service.api.http.access import Caller, ProjectName, needs
from service.api.http.context import ApiContext, Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page
from service.usecases.jobs import sweeps

router = APIRouter(
    prefix="/api/v1/sweeps",
    tags=["sweeps"],
    responses={401: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
_CONTROL: Any = {"status_code": 202, "response_model": SweepView, **needs(Role.USER)}
"""Arguments of the routes that control the trials of a sweep."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that spreadsheets run as formulas."""


def _sweep_for(role: Role) -> Callable[..., Awaitable[str]]:
    async def found(
        context: Context,
        caller: Caller,
        sweep: Annotated[str, Path(description="Id of a sweep, or its name (the newest of that name)")],
        project: ProjectName = None,
    ) -> str:
        if project is not None:
            caller.require(Role.VIEWER, project)
        seen = caller.projects() if project is None else frozenset({project})
        async with context.transactions.begin() as tx:
            known = await tx.sweep_queries.find(sweep, seen)
        caller.require(role, known.project)
        return known.id

    return found


SeenSweep: TypeAlias = Annotated[str, Depends(_sweep_for(Role.VIEWER))]
"""Id of the sweep in the path, which the caller may view. Raises NotFound for every other sweep."""
OwnSweep: TypeAlias = Annotated[str, Depends(_sweep_for(Role.USER))]
"""Id of the sweep in the path, which the caller may control. Raises like `OwnJob`."""


@router.post("", operation_id="submit_sweep", status_code=201, response_model=SweepView, **needs(Role.USER))
async def submit_sweep(
    request: Request,
    context: Context,
    caller: Caller,
    spec: SweepSpec,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a sweep with all its trials, each of which is a job. All are stored, or none.

    A repeated request with the same `Idempotency-Key` returns the first request's sweep.
    """
    caller.require(Role.USER, spec.project)
    now = context.now()
    parent = request.headers.get("traceparent")
    async with context.transactions.begin() as tx:
        stored = await sweeps.submit_sweep(
            tx,
            spec,
            caller=caller,
            sweep_id=new_id("s", now),
            new_job_id=partial(new_id, "j", now),
            begin_trace=lambda job_id: context.begin_trace(job_id, parent),
            idempotency_key=idempotency_key,
            now=now,
        )
        view = await tx.sweep_queries.sweep(stored.id)
    headers = {"Location": f"/api/v1/sweeps/{stored.id}"}
    return as_json(view, 201 if stored.created else 200, headers)


@router.get("", operation_id="list_sweeps", response_model=Page[SweepSummary], **needs(Role.VIEWER))
async def list_sweeps(
    request: Request,
    context: Context,
    caller: Caller,
    project: ProjectName = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List sweeps of the caller's projects, newest first."""
    if project is not None:
        caller.require(Role.VIEWER, project)
    seen = caller.projects() if project is None else frozenset({project})
    async with context.transactions.begin() as tx:
        page = await tx.sweep_queries.list_sweeps(seen, limit=limit, cursor=cursor)
    return as_page(request, page)


@router.get("/{sweep}", operation_id="get_sweep", response_model=SweepView, **needs(Role.VIEWER))
async def get_sweep(context: Context, sweep: SeenSweep) -> Response:
    """Return a sweep by id or by name (the newest), with its trials and the best of them."""
    return as_json(await _view(context, sweep))


@router.get(
    "/{sweep}/results",
    operation_id="sweep_results",
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    **needs(Role.VIEWER),
)
async def results_of_sweep(context: Context, sweep: SeenSweep) -> Response:
    """Return the trials as CSV: states, times, parameters, best values and latest metrics."""
    written = io.StringIO()
    rows = _rows(await _view(context, sweep))
    csv.writer(written).writerows([_guarded(cell) for cell in row] for row in rows)
    return Response(written.getvalue(), media_type="text/csv; charset=utf-8")


def _guarded(cell: object) -> object:
    """Return the cell, with a leading apostrophe if it is a text that a spreadsheet would run as a formula.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _rows(view: SweepView) -> Iterator[list[object]]:
    """Yield the header and a row for each trial. Names of parameters and metrics may be equal, hence their prefixes."""
    names = list(view.sweep.parameters)
    metrics = sorted({name for one in view.trials for name in one.metrics})
    best = [] if view.sweep.metric is None else [f"best.{view.sweep.metric}"]
    yield [
        *("trial", "job", "id", "state", "reason", "started_at", "finished_at"),
        *(f"parameter.{name}" for name in names),
        *best,
        *(f"last.{name}" for name in metrics),
    ]
    for one in view.trials:
        times = (None if at is None else at.isoformat() for at in (one.started_at, one.finished_at))
        yield [
            *(one.number, one.name, one.job_id, one.state.value, one.reason.value, *times),
            *(one.parameters.get(name) for name in names),
            *([one.value] if best else []),
            *(one.metrics.get(name) for name in metrics),
        ]


@router.post("/{sweep}/cancel", operation_id="cancel_sweep", **_CONTROL)
async def cancel_sweep(context: Context, sweep: OwnSweep, request: CancelRequest | None = None) -> Response:
    """Stop all trials permanently: after a last checkpoint, or at once with `force`. Trials that have ended stay as they are."""
    force = request is not None and request.force
    return await _controlled(context, partial(sweeps.cancel, sweep_id=sweep, force=force))


@router.post("/{sweep}/pause", operation_id="pause_sweep", **_CONTROL)
async def pause_sweep(context: Context, sweep: OwnSweep) -> Response:
    """Stop all trials, which may save a checkpoint, and keep them until they are resumed."""
    return await _controlled(context, partial(sweeps.pause, sweep_id=sweep))


@router.post("/{sweep}/resume", operation_id="resume_sweep", **_CONTROL)
async def resume_sweep(context: Context, caller: Caller, sweep: OwnSweep) -> Response:
    """Let all paused trials continue when there are free slots."""
    return await _controlled(context, partial(sweeps.resume, sweep_id=sweep, by=caller.name))


@router.patch("/{sweep}", operation_id="change_sweep", response_model=SweepView, **needs(Role.USER))
async def change_sweep(context: Context, sweep: OwnSweep, patch: JobPatch) -> Response:
    """Change the priority of all trials that have not ended, from the next scheduling round on."""
    action = partial(sweeps.prioritize, sweep_id=sweep, priority=patch.priority)
    return await _controlled(context, action, 200)


async def _controlled(
    context: ApiContext, action: Callable[..., Awaitable[SweepView]], status: int = 202
) -> Response:
    async with context.transactions.begin() as tx:
        view = await action(tx, launch=context.launch, now=context.now())
    return as_json(view, status)


async def _view(context: ApiContext, sweep_id: str) -> SweepView:
    async with context.transactions.begin() as tx:
        return await tx.sweep_queries.sweep(sweep_id)
