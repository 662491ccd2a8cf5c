"""`/api/v1/agents`: hosts join and report."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from headway.contract.agents import (
    JoinReply,
    JoinRequest,
    ReportReply,
    ReportRequest,
    SecretsReply,
    SecretsRequest,
)
from service.api.context import (
    Context,
    Credentials,
    LeaseRenewal,
    Places,
    check_node,
    digest_of,
    may_join,
    new_id,
    require_node,
)
from service.api.pressure import Traffic
from service.api.render import as_json
from service.domain.errors import TooLarge, WrongToken
from service.usecases.heartbeat import heartbeat_of, slower_s
from service.usecases.ingest import ingest
from service.usecases.join import digest_token, join
from service.usecases.logs import append_log
from service.usecases.records import Bell
from service.usecases.secrets import opened, sealed_for

router = APIRouter(prefix="/api/v1/agents", tags=["agents"])
MAX_LOG_CHUNK_BYTES = 1 << 20


@router.post(
    "",
    operation_id="join",
    status_code=201,
    response_model=JoinReply,
)
async def join_agent(context: Context, request: JoinRequest, credentials: Credentials) -> Response:
    """A host offers its slots, with the join token or that of the rented machine that it is. The reply's token
    authorises everything else that its agent does.
    """
    now = context.now()
    token = secrets.token_urlsafe(32)
    async with context.transactions.begin() as tx:
        machine = None
        if not may_join(context, credentials):
            machine = await tx.machines.of_token(digest_token(credentials.credentials if credentials else ""))
            if machine is None:
                raise WrongToken("the join token is missing or wrong; give the agent the right --token.")
        node = await join(tx, request, node_id=new_id("n", now), token=token, now=now, machine=machine)
    reply = JoinReply(
        node_id=node.id,
        node_token=token,
        redis_url=context.agent_redis_url,
        stream=context.stream_of(node.id),
        lease_s=context.lease_s,
        report_every_s=context.report_every_s,
    )
    return as_json(reply, 201)


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
    heartbeat = heartbeat_of(report, node_id, digest_of(credentials))
    if heartbeat is not None and await leases.renew(heartbeat):
        reply = ReportReply(lease_s=context.lease_s)
    else:
        async with gates.inside(Traffic.NEWS), context.transactions.begin() as tx:
            await check_node(tx, credentials, node_id)
            reply = await ingest(
                tx, node_id, report, launch=context.launch, lease_s=context.lease_s, now=context.now()
            )
    every_s = slower_s(leases.nodes, context.report_every_s, context.silence_s)
    return as_json(reply if every_s is None else reply.model_copy(update={"report_every_s": every_s}))


@router.post("/{node_id}/secrets", operation_id="fetch_secrets", response_model=SecretsReply)
async def fetch_secrets(
    context: Context, credentials: Credentials, node_id: str, wanted: SecretsRequest
) -> Response:
    """The secrets of a job, for the ranks of a generation of it that the node is to start."""
    async with context.transactions.begin() as tx:
        await check_node(tx, credentials, node_id)
        project, names, sealed = await sealed_for(tx, node_id, wanted.job_id, wanted.generation)
    env = await opened(context.keys, project, names, sealed)
    return as_json(SecretsReply.model_validate({"env": env}), headers={"Cache-Control": "no-store"})


@router.post("/{node_id}/logs/{job_id}/{generation}/{rank}", operation_id="append_log", status_code=204)
async def append_rank_log(
    request: Request,
    context: Context,
    node_id: Annotated[str, Depends(require_node)],  # noqa: ARG001 - checked, not used
    job_id: Annotated[str, Path(pattern=r"^j[0-9a-z]{8,40}$")],
    generation: Annotated[int, Path(ge=1)],
    rank: Annotated[int, Path(ge=0)],
    offset: Annotated[int, Query(ge=0)],
) -> Response:
    """A piece of a rank's output, as raw bytes."""
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
    return Response(status_code=204)
