"""The catalogue of offers: a built-in table, and the latest offers of the providers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from headway.contract.values.markets import Market
from headway.contract.views.recommendations import OfferPage, OfferView
from service.domain.rental.catalogue import BUILT_IN, Catalogue, merged, selected
from service.domain.rental.machines import Machine
from service.domain.rental.offers import Offer
from service.domain.rental.spot.hazards import hazard_counts, with_learned
from service.domain.rental.spot.observations import REMEMBERED_H
from service.domain.rental.spot.together import zone_shares
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.ports.rental import Provider
from service.usecases.ports.transactions import Transaction, Transactions

FRESH_FOR: Final = timedelta(minutes=15)
"""Interval between two requests for a provider's offers. Spot prices change within hours."""
AGAIN_AFTER: Final = timedelta(minutes=1)
"""Interval before another request to a provider that did not answer."""
_TIMEOUT_S: Final = 20.0


class OfferBook:
    """The catalogue of offers, updated from `providers`. Without providers it is the built-in table."""

    def __init__(self, providers: Sequence[Provider] = ()) -> None:
        self._providers = tuple(providers)
        self._latest: dict[str, tuple[Offer, ...]] = {}
        self._due_at: dict[str, datetime] = {}
        self._notes: dict[str, str] = {}
        self._asking = asyncio.Lock()

    @property
    def providers(self) -> frozenset[str]:
        """Names of the providers that machines are rented from."""
        return frozenset(one.name for one in self._providers)

    async def catalogue(self, now: datetime) -> Catalogue:
        """Return the offers that are available now.

        For a provider that fails, the last known offers count, and `left_out` says so.
        """
        async with self._asking:
            # A time further ahead than any interval means that the clock was set back since.
            due = [
                one for one in self._providers if not now < self._due_at.get(one.name, now) <= now + FRESH_FOR
            ]
            await asyncio.gather(*(self._ask(one, now) for one in due))
        found = merged(BUILT_IN, *self._latest.values())
        return Catalogue(found.offers, (*self._notes.values(), *found.left_out))

    async def _ask(self, provider: Provider, now: datetime) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._latest[provider.name] = tuple(await provider.offers())
        except (HeadwayServiceError, TimeoutError) as error:
            self._due_at[provider.name] = now + AGAIN_AFTER
            why = (
                error.message
                if isinstance(error, HeadwayServiceError)
                else f"no answer in {_TIMEOUT_S:.0f} s"
            )
            self._notes[provider.name] = (
                f"{provider.name} did not answer, so its last known offers are used: {why}"
            )
        else:
            self._due_at[provider.name] = now + FRESH_FOR
            self._notes.pop(provider.name, None)


async def with_hazards(tx: Transaction, catalogue: Catalogue, now: datetime) -> Catalogue:
    """Return the catalogue with hazards learned from this cluster's own leases."""
    leases = await tx.machines.requested_since(now - timedelta(hours=REMEMBERED_H))
    return replace(catalogue, offers=learned_offers(catalogue.offers, leases, now))


def learned_offers(offers: Sequence[Offer], leases: Sequence[Machine], now: datetime) -> tuple[Offer, ...]:
    """Return the offers with what leases have shown of interruptions in their places."""
    return with_learned(offers, hazard_counts(leases, now), now, zone_shares(leases, now))


async def list_offers(
    transactions: Transactions,
    book: OfferBook,
    now: datetime,
    *,
    device: str | None,
    provider: str | None,
    region: str | None,
    market: Market | None,
    max_usd_per_h: float | None,
) -> OfferPage:
    """Return the offers that meet every given condition, by device kind and price."""
    found = await book.catalogue(now)
    async with transactions.begin() as tx:
        found = await with_hazards(tx, found, now)
    kept = selected(
        found.offers,
        device=device,
        provider=provider,
        region=region,
        market=market,
        max_usd_per_h=max_usd_per_h,
    )
    return OfferPage(items=[view_of(one) for one in sorted(kept, key=_order)], notes=list(found.left_out))


def view_of(offer: Offer) -> OfferView:
    """Return an offer as the API shows it."""
    return OfferView(**{name: getattr(offer, name) for name in OfferView.model_fields})


def _order(offer: Offer) -> tuple[str, float, str, str]:
    prices = [price for market in Market if (price := offer.usd_per_h(market)) is not None]
    return (offer.device_kind, max(prices, default=0.0), offer.instance_type, offer.zone)
