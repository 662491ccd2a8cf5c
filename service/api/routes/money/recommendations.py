"""`/api/v1/recommendations`: recommended machines for a job."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from headway.contract.views.identity import Role
from headway.contract.views.recommendations import RecommendationRequest, RecommendationView
from service.api.http.access import Caller, needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.rental.recommendations import recommend_job

router = APIRouter(
    prefix="/api/v1/recommendations",
    tags=["rental"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.post("", operation_id="recommend", response_model=RecommendationView, **needs(Role.VIEWER))
async def recommend(context: Context, caller: Caller, request: RecommendationRequest) -> Response:
    """Return rental plans for a job with time and cost to completion, ranked by its goal.

    Nothing is stored or rented.
    """
    caller.require(Role.VIEWER, request.spec.project)
    view = await recommend_job(context.transactions, context.offers, request, context.now())
    return as_json(view)
