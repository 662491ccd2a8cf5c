"""`/api/v1/jobs/{job}/output`: the files of output folders."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from headway.contract.output import MAX_PATH_BYTES
from headway.contract.views.identity import Role
from headway.contract.views.stored_files import OutputPage
from service.api.http.access import SeenJob, needs
from service.api.http.context import Context, Limit
from service.api.http.render import as_page
from service.usecases.storage.output_files import list_output, read_output_part

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
_Path = Annotated[
    str, Query(min_length=1, max_length=MAX_PATH_BYTES, description="Path of the file, as listed")
]


@router.get("/{job}/output", operation_id="list_output", response_model=OutputPage, **needs(Role.VIEWER))
async def output_of_job(
    request: Request,
    context: Context,
    job: SeenJob,
    limit: Limit = 100,
    cursor: Annotated[str | None, Query(max_length=MAX_PATH_BYTES)] = None,
) -> Response:
    """List the files of the job's output folder in storage, by path.

    The next start of the job restores these files.
    """
    async with context.transactions.begin() as tx:
        view = await tx.job_queries.job(job)
        failure = await tx.jobs.output_failure(view.id)
    root = context.launch.checkpoint_root
    page = await list_output(context.storage, root, view, cursor=cursor, limit=limit, failure=failure)
    return as_page(request, page)


@router.get(
    "/{job}/output/part",
    operation_id="read_output_part",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}},
    **needs(Role.VIEWER),
)
async def output_part(
    context: Context, job: SeenJob, path: _Path, part: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> Response:
    """Return a part of a file of the output folder.

    Each part has 32 MiB except the last. The listing's `parts` is the number of parts.
    """
    async with context.transactions.begin() as tx:
        view = await tx.job_queries.job(job)
    data = await read_output_part(context.storage, view, path, part)
    return Response(data, media_type="application/octet-stream")
