"""`/api/v1/jobs/{job}/executions`: commands beside a rank, their output as a stream, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from headway.contract.executions import (
    ID_PATTERN,
    ExecutionEvent,
    ExecutionInput,
    ExecutionInputReply,
    ExecutionRequest,
    ExecutionView,
)
from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from service.api.http.access import OwnJob, needs
from service.api.http.auditing import hide
from service.api.http.context import ApiContext, Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json, as_stream, sse, wants_stream
from service.domain.shared.errors import NoSecretsKey, SecretUnreadable, Unavailable
from service.usecases.identity.secrets import values_in
from service.usecases.jobs.executions import execute, find_of_job
from service.usecases.ports.executions import Execution
from service.usecases.ports.facts import WakeUp

router = APIRouter(
    prefix="/api/v1/jobs",
    tags=["jobs"],
    responses={401: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)
log = structlog.get_logger()
_LOOK_S: Final = 2.0
"""Interval in seconds in which a stream polls by itself, in case a wake-up was lost."""
ExecutionId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the command")]
After = Annotated[str, Query(pattern=r"^[0-9]{1,10}$", description="Cursor of the last event that was read")]


@router.post(
    "/{job}/executions",
    operation_id="execute_command",
    status_code=201,
    response_model=ExecutionView,
    **needs(Role.USER),
)
async def execute_command(
    connection: Request, context: Context, job: OwnJob, request: ExecutionRequest
) -> Response:
    """Run a command beside a rank of a running job, as the rank's user and in its confinement.

    Read its output from the command's own address. A command that nobody reads is killed after a minute.
    """
    hide(connection, await _secret_values(context, job))
    async with context.transactions.begin() as tx:
        view = await execute(tx, context.executions, job, request, now=context.now())
    return as_json(view, 201)


@router.get(
    "/{job}/executions/{execution}",
    operation_id="read_execution",
    response_model=Page[ExecutionEvent],
    **needs(Role.USER),
)
async def read_execution(
    request: Request, context: Context, job: OwnJob, execution: ExecutionId, after: After = "0"
) -> Response:
    """Return the output of a command that has arrived, with its end in the last event.

    With `Accept: text/event-stream`, stream it as it arrives.
    """
    found = await _found(context, job, execution)
    if wants_stream(request):
        last = request.headers.get("last-event-id", "")
        return as_stream(_follow(context, found.id, last if last.isdecimal() and len(last) <= 10 else after))
    return as_json(Page[ExecutionEvent](items=list(await context.executions.read(found.id, after))))


@router.delete(
    "/{job}/executions/{execution}", operation_id="cancel_execution", status_code=204, **needs(Role.USER)
)
async def cancel_execution(context: Context, job: OwnJob, execution: ExecutionId) -> Response:
    """Kill a command. Its end follows in its output. A command that has ended stays as it is."""
    await context.executions.cancel(await _found(context, job, execution))
    return Response(status_code=204)


@router.post(
    "/{job}/executions/{execution}/input",
    operation_id="send_execution_input",
    response_model=ExecutionInputReply,
    **needs(Role.USER),
)
async def send_execution_input(
    context: Context, job: OwnJob, execution: ExecutionId, chunk: ExecutionInput
) -> Response:
    """Send the next chunk of a command's standard input, or the new size of its terminal.

    A chunk that is not accepted is to be sent again in a moment: the command has not started, or does not read. A chunk
    that is sent twice arrives once.
    """
    return as_json(await context.executions.send_input(await _found(context, job, execution), chunk))


async def _secret_values(context: ApiContext, job: str) -> list[str] | None:
    """Return the values of the job's secrets, or None if no key opens them now, which prevents no command."""
    try:
        return await values_in(context.transactions, context.keys, job)
    except (NoSecretsKey, SecretUnreadable, Unavailable) as error:
        log.warning("command_hidden_in_audit", job=job, why=error.message)
        return None


async def _found(context: ApiContext, job: str, execution: str) -> Execution:
    async with context.transactions.begin() as tx:
        job_id = (await tx.job_queries.job(job)).id
    return await find_of_job(context.executions, job_id, execution)


async def _follow(context: ApiContext, execution_id: str, after: str) -> AsyncIterator[str]:
    """Yield the events of a command as server-sent events until its end."""
    async with context.wake_ups.heard((WakeUp.EXECUTION, execution_id)) as woken:
        while True:
            woken.clear()
            try:
                events = await context.executions.read(execution_id, after)
            except Unavailable:
                yield ": Redis does not answer\n\n"  # the client reconnects with its last position
                return
            for event in events:
                after = event.cursor
                yield sse("output", event.model_dump_json(), event.cursor)
                if event.end is not None:
                    yield sse("end")
                    return
            if not events:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _LOOK_S)
                yield ": still here\n\n"
