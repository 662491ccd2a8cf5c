"""`/api/v1/recommendations`: what to rent for a job."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.recommendations import RecommendationRequest, RecommendationView
from service.api.access import Caller, needs
from service.api.context import Context
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.usecases.recommendations import recommend_job

router = APIRouter(
    prefix="/api/v1/recommendations",
    tags=["rental"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("", operation_id="recommend", response_model=RecommendationView, **needs(Role.VIEWER))
async def recommend(context: Context, caller: Caller, request: RecommendationRequest) -> Response:
    """Plans to rent for a job with time and cost to completion, ranked by its goal. Nothing is stored or rented."""
    caller.require(Role.VIEWER, request.spec.project)
    view = await recommend_job(context.transactions, context.offers, request, context.now())
    return as_json(view)
