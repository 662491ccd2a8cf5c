"""`/api/v1/offers`: what can be rented."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from headway.contract.devices import DEVICE_KIND_PATTERN
from headway.contract.identity import Role
from headway.contract.markets import Market
from headway.contract.recommendations import OfferPage
from service.api.access import needs
from service.api.context import Context
from service.api.problems import PROBLEM
from service.api.render import as_json
from service.usecases.offers import list_offers

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
    region: Annotated[str | None, Query(description="a region, or a zone of one")] = None,
    market: Market | None = None,
    max_usd_per_h: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
) -> Response:
    """Instance types with their prices, by device kind. With `market` and `max_usd_per_h`, those sold there for that."""
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
