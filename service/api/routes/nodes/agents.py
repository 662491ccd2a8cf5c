"""`/api/v1/agents`: routes with which hosts join and report."""

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
from headway.contract.executions import ID_PATTERN, ExecutionReply, ExecutionReport
from headway.contract.renumbering import MAX_RANK
from headway.contract.values.text import GivenText
from service.api.http.addresses import client_address
from service.api.http.context import (
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
from service.api.http.pressure import Gates, Traffic
from service.api.http.render import as_json
from service.domain.shared.errors import TooLarge
from service.usecases.identity.secrets import opened, sealed_for
from service.usecases.jobs.executions import take_report
from service.usecases.nodes.credentials import authenticate
from service.usecases.nodes.join import admit, join
from service.usecases.ports.facts import WakeUp
from service.usecases.reports.heartbeat import Heartbeats
from service.usecases.reports.ingest import ingest
from service.usecases.storage.logs import append_log

router = APIRouter(prefix="/api/v1/agents", tags=["agents"])
MAX_LOG_CHUNK_BYTES = 1 << 20
RENEW_CREDENTIALS_S = 86_400.0


@router.post(
    "",
    operation_id="join",
    status_code=201,
    response_model=JoinReply,
)
async def join_agent(
    context: Context, request: JoinRequest, credentials: Credentials, connection: Request
) -> Response:
    """Join the cluster as a host with its slots.

    The credentials are a join token, the token of a rented machine, or the host's earlier token when it
    returns. The token in the answer authorises all other requests of the agent.
    """
    now = context.now()
    token = secrets.token_urlsafe(32)
    async with context.transactions.begin() as tx:
        admission = await admit(
            tx, request, digest_of(credentials), permanent=may_join(context, credentials), now=now
        )
        node = await join(tx, request, admission, node_id=new_id("n", now), token=token, now=now)
        source = client_address(connection.scope, context.http.trusted_proxies)
        await tx.links.save_facts(node.id, request.host, source, now)
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
    node_id: GivenText,
    report: ReportRequest,
) -> Response:
    """Process a report of an agent and renew its lease. A report that is sent twice counts once."""
    # Only unreadable reports arrive here; see `quick`.
    return as_json(await take_in(context, gates, leases, node_id, digest_of(credentials), report))


async def take_in(
    context: ApiContext,
    gates: Gates,
    leases: Heartbeats,
    node_id: GivenText,
    token_sha256: str,
    report: ReportRequest,
) -> ReportReply:
    """Process a report with any kind of content, and return the reply."""
    async with gates.inside(Traffic.NEWS), context.transactions.begin() as tx:
        await authenticate(tx, node_id, token_sha256, context.now())
        bind_contextvars(node=node_id)
        reply = await ingest(
            tx, node_id, report, launch=context.launch, lease_s=context.lease_s, now=context.now()
        )
    return reply.model_copy(update={"reach": leases.links.of(node_id), "report_every_s": leases.slower_s})


@router.post("/{node_id}/secrets", operation_id="fetch_secrets", response_model=SecretsReply)
async def fetch_secrets(
    context: Context, credentials: Credentials, node_id: GivenText, wanted: SecretsRequest
) -> Response:
    """Return the secrets of a job, for the ranks of a generation that the node is to start."""
    async with context.transactions.begin() as tx:
        await check_node(context, tx, credentials, node_id)
        project, names, sealed = await sealed_for(tx, node_id, wanted.job_id, wanted.generation)
    env = await opened(context.keys, project, names, sealed)
    return as_json(SecretsReply.model_validate({"env": env}), headers={"Cache-Control": "no-store"})


@router.post(
    "/{node_id}/executions/{execution_id}", operation_id="report_execution", response_model=ExecutionReply
)
async def report_execution(
    context: Context,
    writers: Writers,
    credentials: Credentials,
    node_id: GivenText,
    execution_id: Annotated[str, Path(pattern=ID_PATTERN)],
    report: ExecutionReport,
) -> Response:
    """Process a report about a command beside a rank: its claim, its output, or its end."""
    await writers.check(node_id, digest_of(credentials), report.job_id, report.generation)
    bind_contextvars(node=node_id)
    reply = await take_report(context.executions, node_id, execution_id, report)
    if report.parts or report.end is not None:
        await context.wake_ups.wake(WakeUp.EXECUTION, execution_id)
    return as_json(reply)


@router.post("/{node_id}/logs/{job_id}/{generation}/{rank}", operation_id="append_log", status_code=204)
async def append_rank_log(
    request: Request,
    context: Context,
    writers: Writers,
    credentials: Credentials,
    node_id: GivenText,
    job_id: Annotated[str, Path(pattern=JOB_ID_PATTERN)],
    generation: Annotated[int, Path(ge=1, le=MAX_GENERATION)],
    rank: Annotated[int, Path(ge=0)],
    offset: Annotated[int, Query(ge=0)],
    present_rank: Annotated[int | None, Query(ge=0, le=MAX_RANK)] = None,
) -> Response:
    """Append a chunk of a rank's output (raw bytes), from the node that runs or ran the rank.

    `generation` and `rank` are those of the start of the process. `present_rank` is its rank when it wrote the
    chunk, if a change of members has renumbered it.
    """
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
            present_rank=present_rank,
            data=data,
            now=context.now(),
        )
        await context.wake_ups.wake(WakeUp.LOGS, job_id)
    # Readers at other API processes are unknown here. They wait for the normal interval.
    followed = context.wake_ups.is_heard(WakeUp.LOGS, job_id)
    return Response(status_code=204, headers={FOLLOWED_HEADER: "1"} if followed else None)
