"""Where ranks have their requests to the object storage signed."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.credentials import SignReply, SignRequest
from service.api.context import Context, Credentials, digest_of
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.usecases.storage_access import sign

router = APIRouter(
    prefix="/api/v1/storage",
    tags=["agents"],
    responses={401: PROBLEM, 404: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("/signatures", operation_id="sign_storage", response_model=SignReply)
async def sign_storage(context: Context, credentials: Credentials, wanted: SignRequest) -> Response:
    """URLs for requests about the checkpoints of one job, for the bearer of a ticket to them. No bytes of them come this way."""
    signed = await sign(
        context.transactions, context.access.signer, digest_of(credentials), wanted, context.now()
    )
    return as_json(signed, headers={"Cache-Control": "no-store"})
