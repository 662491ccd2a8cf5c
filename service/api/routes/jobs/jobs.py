"""`/api/v1/jobs`: jobs, their control and their history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from headway.contract.spec import JobSpec
from headway.contract.views.decisions import ExplanationView
from headway.contract.views.forecasts import ForecastView
from headway.contract.views.identity import Role
from headway.contract.views.jobs import (
    CancelRequest,
    EventView,
    JobPatch,
    JobProgress,
    JobState,
    JobView,
    LogChunk,
    MetricPoint,
    Page,
    ResizeRequest,
)
from headway.contract.views.ranks import RankView
from headway.contract.views.stored_files import CheckpointPage
from service.api.http.access import Caller, OwnJob, SeenJob, needs
from service.api.http.context import ApiContext, Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_page, as_stream, wants_stream
from service.api.http.streams import follow_events
from service.api.routes.jobs.log_streams import LogRequest, filter_of, follow_logs, log_page, since_of
from service.api.routes.jobs.submit import SubmitRoute
from service.domain.jobs.job import Job
from service.domain.jobs.logs import CURSOR
from service.domain.shared.errors import InvalidField
from service.usecases.jobs import control
from service.usecases.jobs.explanations import explain_job
from service.usecases.jobs.forecasts import forecast_job
from service.usecases.jobs.inherit import CheckpointStore
from service.usecases.jobs.ranks import list_ranks
from service.usecases.jobs.submit import admit
from service.usecases.ports.jobs import JobFilter
from service.usecases.storage.checkpoints import list_checkpoints, restorable_of

_LAST = 2**63 - 1
"""Largest number that the database knows."""
router = APIRouter(
    prefix="/api/v1/jobs",
    tags=["jobs"],
    responses={401: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
_CONTROL: Any = {"status_code": 202, "response_model": JobView, **needs(Role.USER)}
"""Arguments of the routes that control a job."""


async def submit_job(
    request: Request, context: Context, caller: Caller, spec: JobSpec, idempotency_key: IdempotencyKey = None
) -> Response:
    """Submit a job. A repeated request with the same `Idempotency-Key` returns the first request's job."""
    caller.require(Role.USER, spec.project)
    now = context.now()
    job_id = new_id("j", now)
    submitted = await admit(
        context.transactions,
        context.admissions,
        CheckpointStore(context.storage, context.launch.checkpoint_root),
        spec,
        caller=caller,
        job_id=job_id,
        idempotency_key=idempotency_key,
        usd_per_slot_h=context.usd_per_slot_h,
        now=now,
        trace=context.begin_trace(job_id, request.headers.get("traceparent")),
    )
    headers = {"Location": f"/api/v1/jobs/{submitted.job.id}"}
    return as_json(_fresh_view(submitted.job), 201 if submitted.created else 200, headers)


router.add_api_route(
    "",
    submit_job,
    methods=["POST"],
    operation_id="submit_job",
    status_code=201,
    response_model=JobView,
    route_class_override=SubmitRoute,
    **needs(Role.USER),
)


def _fresh_view(job: Job) -> JobView:
    """Return the view of a job without slots, which needs no query of nodes."""
    return JobView(
        id=job.id,
        name=job.name,
        project=job.spec.project,
        state=job.state,
        reason=job.reason,
        message=job.message,
        generation=job.generation,
        attempt=job.attempt,
        size=0,
        allocation={},
        pinned_size=job.pinned_size,
        progress=JobProgress.model_construct(**dict(job.progress)),
        preemptions=job.preemptions,
        infrastructure_failures=job.infrastructure_failures,
        user_errors=job.user_errors,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        spec=job.spec,
        owner=job.owner,
        present="",
    )


@router.get("", operation_id="list_jobs", response_model=Page[JobView], **needs(Role.VIEWER))
async def list_jobs(
    request: Request,
    context: Context,
    caller: Caller,
    state: JobState | None = None,
    name: str | None = None,
    project: str | None = None,
    owner: Annotated[
        str | None, Query(max_length=300, description="Only jobs that this user or robot submitted")
    ] = None,
    live: Annotated[bool, Query(description="Only jobs that have not ended")] = False,  # noqa: FBT002
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List jobs of the caller's projects, newest first."""
    if project is not None:
        caller.require(Role.VIEWER, project)
    filters = JobFilter(
        state=state, name=name, project=project, owner=owner, live_only=live, projects=caller.projects()
    )
    async with context.transactions.begin() as tx:
        page = await tx.job_queries.list_jobs(filters, limit=limit, cursor=cursor)
    return as_page(request, page)


@router.get("/{job}", operation_id="get_job", response_model=JobView, **needs(Role.VIEWER))
async def get_job(context: Context, job: SeenJob) -> Response:
    """Return a job by id or by name (the live job, else the newest)."""
    return as_json(await _view(context, job))


async def _view(context: Context, job: str) -> JobView:
    async with context.transactions.begin() as tx:
        return await tx.job_queries.job(job)


@router.post("/{job}/cancel", operation_id="cancel_job", **_CONTROL)
async def cancel_job(context: Context, job: OwnJob, request: CancelRequest | None = None) -> Response:
    """Stop a job permanently: after a last checkpoint, or at once with `force`."""
    force = request is not None and request.force
    return await _controlled(context, job, partial(control.cancel, force=force))


@router.post("/{job}/pause", operation_id="pause_job", **_CONTROL)
async def pause_job(context: Context, job: OwnJob) -> Response:
    """Stop the job, which may save a checkpoint, and keep it until it is resumed."""
    return await _controlled(context, job, control.pause)


@router.post("/{job}/resume", operation_id="resume_job", **_CONTROL)
async def resume_job(context: Context, caller: Caller, job: OwnJob) -> Response:
    """Let a paused job continue when there are free slots.

    A job that failed or was cancelled continues from its newest complete checkpoint, with a fresh retry budget.
    """
    root = context.launch.checkpoint_root
    found = await restorable_of(context.transactions, context.storage, root, job)
    return await _controlled(context, job, partial(control.resume, by=caller.name, restorable=found))


@router.post("/{job}/resize", operation_id="resize_job", **_CONTROL)
async def resize_job(context: Context, job: OwnJob, request: ResizeRequest) -> Response:
    """Fix the job's size, or let the scheduler choose it again (null)."""
    return await _controlled(context, job, partial(control.resize, slots=request.slots, force=request.force))


@router.patch("/{job}", operation_id="change_job", response_model=JobView, **needs(Role.USER))
async def change_job(context: Context, job: OwnJob, patch: JobPatch) -> Response:
    """Change the job's priority, from the next scheduling round on."""
    return await _controlled(context, job, partial(control.prioritize, priority=patch.priority), 200)


async def _controlled(
    context: ApiContext, job: str, action: Callable[..., Awaitable[Job]], status: int = 202
) -> Response:
    """Apply an action of `control` to a job, and return the job as it is then."""
    async with context.transactions.begin() as tx:
        changed = await action(tx, job, launch=context.launch, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view, status)


@router.get(
    "/{job}/explain", operation_id="explain_job", response_model=ExplanationView, **needs(Role.VIEWER)
)
async def explanation_of_job(context: Context, job: SeenJob) -> Response:
    """Return the latest decision about the job, its alternatives, and the value of more slots to it."""
    async with context.transactions.begin() as tx:
        return as_json(await explain_job(tx, job))


@router.get("/{job}/ranks", operation_id="list_ranks", response_model=Page[RankView], **needs(Role.VIEWER))
async def ranks_of_job(request: Request, context: Context, job: SeenJob) -> Response:
    """List the processes of the job that have not ended: node, slot and process id of each rank."""
    async with context.transactions.begin() as tx:
        return as_page(request, await list_ranks(tx, job))


@router.get("/{job}/forecast", operation_id="forecast_job", response_model=ForecastView, **needs(Role.VIEWER))
async def forecast_of_job(context: Context, job: SeenJob) -> Response:
    """Return the predicted time and cost of the job at every size, and the errors of earlier predictions."""
    view = await _view(context, job)
    async with context.transactions.begin() as tx:
        found = await forecast_job(tx, view, usd_per_slot_h=context.usd_per_slot_h, now=context.now())
    return as_json(found)


@router.get(
    "/{job}/metrics", operation_id="list_metrics", response_model=Page[MetricPoint], **needs(Role.VIEWER)
)
async def list_metrics(
    request: Request, context: Context, job: SeenJob, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List the metrics that the script reported, oldest first."""
    after = _number(cursor)
    async with context.transactions.begin() as tx:
        job_id = (await tx.job_queries.job(job)).id
        page = await tx.job_queries.metrics(job_id, after=after, limit=limit)
    return as_page(request, page)


@router.get("/{job}/events", operation_id="list_events", response_model=Page[EventView], **needs(Role.VIEWER))
async def list_events(
    request: Request,
    context: Context,
    job: SeenJob,
    after: Annotated[int, Query(ge=0, description="Only events after this sequence number")] = 0,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the job's events, oldest first. With `Accept: text/event-stream`, stream them as they happen."""
    job_id = (await _view(context, job)).id
    if wants_stream(request):
        last = _number(request.headers.get("last-event-id")) or min(after, _LAST)
        return as_stream(follow_events(context, job_id, last))
    async with context.transactions.begin() as tx:
        page = await tx.job_queries.events(job_id, after=_number(cursor) or min(after, _LAST), limit=limit)
    return as_page(request, page)


@router.get(
    "/{job}/checkpoints",
    operation_id="list_checkpoints",
    response_model=CheckpointPage,
    **needs(Role.VIEWER),
)
async def checkpoints_of_job(
    request: Request, context: Context, job: SeenJob, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List the job's checkpoints in storage, newest first.

    A page can be shorter than `limit`; only a missing cursor ends the list.
    """
    view = await _view(context, job)
    root = context.launch.checkpoint_root
    return as_page(request, await list_checkpoints(context.storage, root, view, cursor=cursor, limit=limit))


@router.get("/{job}/logs", operation_id="read_logs", response_model=Page[LogChunk], **needs(Role.VIEWER))
async def read_job_logs(
    request: Request,
    context: Context,
    job: SeenJob,
    after: Cursor = None,
    rank: Annotated[
        int | None,
        Query(ge=0, description="Only output of this rank, as it was numbered when it wrote the output"),
    ] = None,
    generation: Annotated[int | None, Query(ge=1, description="Only output of this generation")] = None,
    attempt: Annotated[int | None, Query(ge=1, description="Only output of this start of the job")] = None,
    since: Annotated[
        str | None,
        Query(
            max_length=64,
            description="Only output received within this time, such as `10m`, or since this time, such as "
            "`2026-03-10T12:00:00Z`",
        ),
    ] = None,
    tail: Annotated[int | None, Query(ge=1, le=10_000, description="Only the last lines")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Return the output of the ranks in order of arrival.

    With `Accept: text/event-stream`, stream it as it arrives.
    """
    view = await _view(context, job)
    if wants_stream(request):
        given = request.headers.get("last-event-id")
        cursor = given if given is not None and CURSOR.fullmatch(given) else cursor
    after = cursor or after
    if after is not None and not CURSOR.fullmatch(after):
        raise InvalidField(
            "cursor", "this is not a cursor of this listing; repeat the request without a cursor"
        )
    wanted = LogRequest(
        job=view,
        filter=await filter_of(context, view, rank=rank, generation=generation, attempt=attempt),
        cursor=after,
        since=since_of(since, context.now()),
        tail=tail,
    )
    if wants_stream(request):
        return as_stream(follow_logs(context, wanted))
    return as_page(request, await log_page(context, wanted, limit))


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > 18:
        raise InvalidField(
            "cursor", "this is not a cursor of this listing; repeat the request without a cursor"
        )
    return int(text)
