"""`/api/v1/offers`: machines that can be rented."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.contract.values.markets import Market
from headway.contract.views.identity import Role
from headway.contract.views.recommendations import OfferPage
from service.api.http.access import needs
from service.api.http.context import Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.usecases.rental.offers import list_offers

router = APIRouter(
    prefix="/api/v1/offers",
    tags=["rental"],
    responses={401: PROBLEM, 422: PROBLEM, 503: PROBLEM},
)


@router.get("", operation_id="list_offers", response_model=OfferPage, **needs(Role.VIEWER))
async def get_offers(
    context: Context,
    device: Annotated[str | None, Query(pattern=DEVICE_KIND_PATTERN)] = None,
    provider: str | None = None,
    region: Annotated[str | None, Query(description="A region, or a zone of a region")] = None,
    market: Market | None = None,
    max_usd_per_h: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
) -> Response:
    """List instance types with their prices, by device kind.

    `market` and `max_usd_per_h` select the types sold in that market up to that price.
    """
    page = await list_offers(
        context.transactions,
        context.offers,
        context.now(),
        device=device,
        provider=provider,
        region=region,
        market=market,
        max_usd_per_h=max_usd_per_h,
    )
    return as_json(page)
