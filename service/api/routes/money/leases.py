"""`/api/v1/jobs/{job}/machines`: machines that users lease for a job."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.views.identity import Role
from headway.contract.views.jobs import Page
from headway.contract.views.machines import LeaseRequest, MachineView
from service.api.http.access import Caller, OperatedJob, needs
from service.api.http.context import Context, IdempotencyKey
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.rental.lease import lease_machines

router = APIRouter(
    prefix="/api/v1/jobs",
    tags=["machines"],
    responses={401: PROBLEM, 404: PROBLEM, 409: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post(
    "/{job}/machines",
    operation_id="lease_machines",
    status_code=201,
    response_model=Page[MachineView],
    **needs(Role.OPERATOR),
)
async def lease(
    context: Context,
    caller: Caller,
    job: OperatedJob,
    request: LeaseRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Lease the machines of a plan for a job. They are kept until the job ends.

    A repeated request with the same `Idempotency-Key` returns the leases of the first one.
    """
    now = context.now()
    machines = await lease_machines(
        context.transactions,
        context.offers,
        request,
        job_id=job,
        caller=caller,
        key=idempotency_key or str(uuid.uuid4()),
        rules=context.rental,
        join_secret=context.join_token,
        now=now,
    )
    async with context.transactions.begin() as tx:
        views = await tx.machines.views_of([one.id for one in machines], now)
    return as_json(Page[MachineView](items=views), 201)
