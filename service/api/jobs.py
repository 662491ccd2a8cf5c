"""`/api/v1/jobs`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from headway.contract.decisions import ExplanationView
from headway.contract.forecasts import ForecastView
from headway.contract.identity import Role
from headway.contract.jobs import (
    CancelRequest,
    CheckpointPage,
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
from headway.contract.spec import JobSpec
from service.api.access import Caller, OwnJob, SeenJob, needs
from service.api.context import Context, Cursor, IdempotencyKey, Limit, new_id
from service.api.log_streams import Wanted, filter_of, follow_logs, log_page, since_of
from service.api.problems import PROBLEM
from service.api.render import as_json, as_page, as_stream, wants_stream
from service.api.streams import follow_events
from service.domain.errors import InvalidField
from service.domain.jobs import Job
from service.domain.logs import CURSOR
from service.usecases import control
from service.usecases.checkpoints import list_checkpoints
from service.usecases.explanations import explain_job
from service.usecases.forecasts import forecast_job
from service.usecases.records import JobFilter
from service.usecases.submit import submit

router = APIRouter(
    prefix="/api/v1/jobs",
    tags=["jobs"],
    responses={401: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("", operation_id="submit_job", status_code=201, response_model=JobView, **needs(Role.USER))
async def submit_job(
    request: Request, context: Context, caller: Caller, spec: JobSpec, idempotency_key: IdempotencyKey = None
) -> Response:
    """Submit a job. With an `Idempotency-Key`, the same request again returns the job of the first."""
    caller.require(Role.USER, spec.project)
    now = context.now()
    job_id = new_id("j", now)
    async with context.transactions.begin() as tx:
        submitted = await submit(
            tx,
            spec,
            caller=caller,
            job_id=job_id,
            idempotency_key=idempotency_key,
            now=now,
            trace=context.begin_trace(job_id, request.headers.get("traceparent")),
        )
    headers = {"Location": f"/api/v1/jobs/{submitted.job.id}"}
    return as_json(_fresh_view(submitted.job), 201 if submitted.created else 200, headers)


def _fresh_view(job: Job) -> JobView:
    """A job that holds nothing yet: its view needs no look at the nodes."""
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
    )


@router.get("", operation_id="list_jobs", response_model=Page[JobView], **needs(Role.VIEWER))
async def list_jobs(
    request: Request,
    context: Context,
    caller: Caller,
    state: JobState | None = None,
    name: str | None = None,
    project: str | None = None,
    live: Annotated[bool, Query(description="Only jobs that have not ended")] = False,  # noqa: FBT002
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Jobs of the caller's projects, newest first."""
    if project is not None:
        caller.require(Role.VIEWER, project)
    filters = JobFilter(state=state, name=name, project=project, live_only=live, projects=caller.projects())
    async with context.transactions.begin() as tx:
        page = await tx.job_queries.list_jobs(filters, limit=limit, cursor=cursor)
    return as_page(request, page)


@router.get("/{job}", operation_id="get_job", response_model=JobView, **needs(Role.VIEWER))
async def get_job(context: Context, job: SeenJob) -> Response:
    """One job, by id or by name (the live one, else the newest)."""
    return as_json(await _view(context, job))


async def _view(context: Context, job: str) -> JobView:
    async with context.transactions.begin() as tx:
        return await tx.job_queries.job(job)


@router.post(
    "/{job}/cancel", operation_id="cancel_job", status_code=202, response_model=JobView, **needs(Role.USER)
)
async def cancel_job(context: Context, job: OwnJob, request: CancelRequest | None = None) -> Response:
    """Stop a job for good: after a last checkpoint, or at once with `force`."""
    force = request is not None and request.force
    async with context.transactions.begin() as tx:
        changed = await control.cancel(tx, job, force=force, launch=context.launch, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view, 202)


@router.post(
    "/{job}/pause", operation_id="pause_job", status_code=202, response_model=JobView, **needs(Role.USER)
)
async def pause_job(context: Context, job: OwnJob) -> Response:
    """Checkpoint, stop, and keep the job until it is resumed."""
    async with context.transactions.begin() as tx:
        changed = await control.pause(tx, job, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view, 202)


@router.post(
    "/{job}/resume", operation_id="resume_job", status_code=202, response_model=JobView, **needs(Role.USER)
)
async def resume_job(context: Context, job: OwnJob) -> Response:
    """Let a paused job go on when there is room."""
    async with context.transactions.begin() as tx:
        changed = await control.resume(tx, job, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view, 202)


@router.post(
    "/{job}/resize", operation_id="resize_job", status_code=202, response_model=JobView, **needs(Role.USER)
)
async def resize_job(context: Context, job: OwnJob, request: ResizeRequest) -> Response:
    """Fix the job's size, or (null) let the scheduler choose again."""
    async with context.transactions.begin() as tx:
        changed = await control.resize(tx, job, request.slots, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view, 202)


@router.patch("/{job}", operation_id="change_job", response_model=JobView, **needs(Role.USER))
async def change_job(context: Context, job: OwnJob, patch: JobPatch) -> Response:
    """Give the job another priority; it counts from the next round on."""
    async with context.transactions.begin() as tx:
        changed = await control.prioritize(tx, job, patch.priority, now=context.now())
        view = await tx.job_queries.job(changed.id)
    return as_json(view)


@router.get(
    "/{job}/explain", operation_id="explain_job", response_model=ExplanationView, **needs(Role.VIEWER)
)
async def explanation_of_job(context: Context, job: SeenJob) -> Response:
    """The last decision about the job, what it was weighed against, and what a little more would be worth to it."""
    async with context.transactions.begin() as tx:
        return as_json(await explain_job(tx, job, context.usd_per_slot_h))


@router.get("/{job}/forecast", operation_id="forecast_job", response_model=ForecastView, **needs(Role.VIEWER))
async def forecast_of_job(context: Context, job: SeenJob) -> Response:
    """What the job would take at every size, in time and money, and how good such predictions of it were."""
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
    """Values that the script reported, oldest first."""
    after = _number(cursor)
    async with context.transactions.begin() as tx:
        job_id = (await tx.job_queries.job(job)).id
        page = await tx.history_queries.metrics(job_id, after=after, limit=limit)
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
    """What happened to the job, oldest first; with `Accept: text/event-stream` as it happens."""
    job_id = (await _view(context, job)).id
    if wants_stream(request):
        seen = _number(request.headers.get("last-event-id")) or after
        return as_stream(follow_events(context, job_id, seen))
    async with context.transactions.begin() as tx:
        page = await tx.history_queries.events(job_id, after=_number(cursor) or after, limit=limit)
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
    """Checkpoints of the job as they lie in storage, newest first. A page may be shorter than `limit`: it ends with its cursor."""
    view = await _view(context, job)
    root = context.launch.checkpoint_root
    return as_page(
        request, await list_checkpoints(context.checkpoints, root, view, cursor=cursor, limit=limit)
    )


@router.get("/{job}/logs", operation_id="read_logs", response_model=Page[LogChunk], **needs(Role.VIEWER))
async def read_job_logs(
    request: Request,
    context: Context,
    job: SeenJob,
    after: Cursor = None,
    rank: Annotated[int | None, Query(ge=0)] = None,
    generation: Annotated[int | None, Query(ge=1, description="Of this generation only")] = None,
    attempt: Annotated[int | None, Query(ge=1, description="Of this start of the job only")] = None,
    since: Annotated[
        str | None,
        Query(
            max_length=64,
            description="Received within this time, `10m`, or from a moment on, `2026-03-10T12:00:00Z`",
        ),
    ] = None,
    tail: Annotated[int | None, Query(ge=1, le=10_000, description="Only the last lines")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Output of the ranks in the order of its arrival; with `Accept: text/event-stream` as it comes."""
    view = await _view(context, job)
    if wants_stream(request):
        given = request.headers.get("last-event-id")
        cursor = given if given is not None and CURSOR.fullmatch(given) else cursor
    after = cursor or after
    if after is not None and not CURSOR.fullmatch(after):
        raise InvalidField("cursor", "not a cursor of this listing; start without one")
    wanted = Wanted(
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
    if not text.isdecimal():
        raise InvalidField("cursor", "not a cursor of this listing; start without one")
    return int(text)
