"""`/api/v1/storage`: signatures for requests of ranks to the object storage."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.credentials import SignReply, SignRequest
from service.api.http.context import Context, Credentials, digest_of
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.storage.access import sign

router = APIRouter(
    prefix="/api/v1/storage",
    tags=["agents"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("/signatures", operation_id="sign_storage", response_model=SignReply)
async def sign_storage(context: Context, credentials: Credentials, wanted: SignRequest) -> Response:
    """Return signed URLs for requests about the checkpoints of one job, for the bearer of a ticket.

    The data itself does not pass through the service.
    """
    signed = await sign(
        context.transactions, context.access.signer, digest_of(credentials), wanted, context.now()
    )
    return as_json(signed, headers={"Cache-Control": "no-store"})
