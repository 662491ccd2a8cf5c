"""What the use cases need to know of bad devices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from service.domain.cluster import SlotKey
from service.domain.health import Quarantine


class Quarantines(Protocol):
    """Slots that no job gets, and those that were."""

    async def of_slot(self, slot: SlotKey, since: datetime) -> list[Quarantine]:
        """The quarantines of a slot that are open or began after a moment, oldest first."""
        ...

    async def open(self, node_ids: Sequence[str] | None = None) -> list[Quarantine]:
        """Those that are open, by node and slot: of these nodes, or (None) of all."""
        ...

    async def save(self, quarantine: Quarantine) -> bool:
        """Store a new one (without an id), or a known one. False, and nothing stored: the slot is in another one already."""
        ...
