"""`/api/v1/agents`: hosts join and report."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from structlog.contextvars import bind_contextvars

from headway.contract.agents import (
    FOLLOWED_HEADER,
    JoinReply,
    JoinRequest,
    ReportReply,
    ReportRequest,
)
from headway.contract.credentials import JOB_ID_PATTERN, MAX_GENERATION, SecretsReply, SecretsRequest
from service.api.context import (
    ApiContext,
    Context,
    Credentials,
    LeaseRenewal,
    Places,
    Writers,
    check_node,
    digest_of,
    may_join,
    new_id,
)
from service.api.pressure import Gates, Traffic
from service.api.render import as_json
from service.domain.errors import TooLarge
from service.usecases.heartbeat import Heartbeats
from service.usecases.ingest import ingest
from service.usecases.join import admit, join
from service.usecases.logs import append_log
from service.usecases.node_credentials import authenticate
from service.usecases.records import Bell
from service.usecases.secrets import opened, sealed_for

router = APIRouter(prefix="/api/v1/agents", tags=["agents"])
MAX_LOG_CHUNK_BYTES = 1 << 20
RENEW_CREDENTIALS_S = 86_400.0


@router.post(
    "",
    operation_id="join",
    status_code=201,
    response_model=JoinReply,
)
async def join_agent(context: Context, request: JoinRequest, credentials: Credentials) -> Response:
    """A host offers its slots: with a join token, that of the rented machine that it is, or when it comes back its own. The
    reply's token authorises everything else that its agent does.
    """
    now = context.now()
    token = secrets.token_urlsafe(32)
    async with context.transactions.begin() as tx:
        admission = await admit(
            tx, request, digest_of(credentials), permanent=may_join(context, credentials), now=now
        )
        node = await join(tx, request, admission, node_id=new_id("n", now), token=token, now=now)
    reply = JoinReply(
        node_id=node.id,
        node_token=token,
        redis_url=await context.access.queue.grant(node.id),
        stream=context.stream_of(node.id),
        lease_s=context.lease_s,
        report_every_s=context.report_every_s,
        renew_credentials_s=RENEW_CREDENTIALS_S,
    )
    return as_json(reply, 201, headers={"Cache-Control": "no-store"})


@router.post("/{node_id}/reports", operation_id="report", response_model=ReportReply)
async def report_news(
    context: Context,
    leases: LeaseRenewal,
    gates: Places,
    credentials: Credentials,
    node_id: str,
    report: ReportRequest,
) -> Response:
    """A batch of news; renews the lease. Sending a batch twice counts it once."""
    # None comes here that can be read, see `quick`.
    return as_json(await take_in(context, gates, leases, node_id, digest_of(credentials), report))


async def take_in(
    context: ApiContext,
    gates: Gates,
    leases: Heartbeats,
    node_id: str,
    token_sha256: str,
    report: ReportRequest,
) -> ReportReply:
    """Take in a report with any news."""
    async with gates.inside(Traffic.NEWS), context.transactions.begin() as tx:
        await authenticate(tx, node_id, token_sha256, context.now())
        bind_contextvars(node=node_id)
        reply = await ingest(
            tx, node_id, report, launch=context.launch, lease_s=context.lease_s, now=context.now()
        )
    return reply.model_copy(update={"report_every_s": leases.slower_s})


@router.post("/{node_id}/secrets", operation_id="fetch_secrets", response_model=SecretsReply)
async def fetch_secrets(
    context: Context, credentials: Credentials, node_id: str, wanted: SecretsRequest
) -> Response:
    """The secrets of a job, for the ranks of a generation of it that the node is to start."""
    async with context.transactions.begin() as tx:
        await check_node(context, tx, credentials, node_id)
        project, names, sealed = await sealed_for(tx, node_id, wanted.job_id, wanted.generation)
    env = await opened(context.keys, project, names, sealed)
    return as_json(SecretsReply.model_validate({"env": env}), headers={"Cache-Control": "no-store"})


@router.post("/{node_id}/logs/{job_id}/{generation}/{rank}", operation_id="append_log", status_code=204)
async def append_rank_log(
    request: Request,
    context: Context,
    writers: Writers,
    credentials: Credentials,
    node_id: str,
    job_id: Annotated[str, Path(pattern=JOB_ID_PATTERN)],
    generation: Annotated[int, Path(ge=1, le=MAX_GENERATION)],
    rank: Annotated[int, Path(ge=0)],
    offset: Annotated[int, Query(ge=0)],
) -> Response:
    """A piece of a rank's output, as raw bytes, from the node that runs the rank or has run it."""
    await writers.check(node_id, digest_of(credentials), job_id, generation)
    bind_contextvars(node=node_id)
    data = await request.body()
    if len(data) > MAX_LOG_CHUNK_BYTES:
        raise TooLarge(f"a log chunk may be {MAX_LOG_CHUNK_BYTES} bytes at most; send smaller ones")
    if data:
        await append_log(
            context.storage,
            job_id,
            generation=generation,
            rank=rank,
            offset=offset,
            data=data,
            now=context.now(),
        )
        await context.bells.ring(Bell.LOGS, job_id)
    # Who follows at another process than this one is not known here: they wait as long as anybody.
    followed = context.bells.is_heard(Bell.LOGS, job_id)
    return Response(status_code=204, headers={FOLLOWED_HEADER: "1"} if followed else None)
