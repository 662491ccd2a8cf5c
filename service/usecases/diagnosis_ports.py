"""What a diagnosis needs of the database."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from service.domain.diagnosis import Facts


class Diagnostics(Protocol):
    """The facts that a diagnosis rests on."""

    async def facts(self, now: datetime) -> Facts:
        """What there is to say of nodes, jobs, the leader, and where the database comes from."""
        ...
