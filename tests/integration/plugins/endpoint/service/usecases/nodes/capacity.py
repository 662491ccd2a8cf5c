"""Device kinds with free slots."""

from collections.abc import Mapping

from headway.contract.views.decisions import KindView
from service.usecases.ports.transactions import Transaction
from service.usecases.rounds.policy_choice import kinds_of


async def free_kinds(tx: Transaction, usd_per_slot_h: Mapping[str, float]) -> list[KindView]:
    """Return the kinds that have free slots, the cheapest first."""
    kinds = kinds_of(await tx.round_queries.slots(), usd_per_slot_h)
    return sorted((one for one in kinds if one.free), key=lambda one: one.usd_per_slot_h)
