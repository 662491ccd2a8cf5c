"""Rented machines, for those who see some projects only."""

from __future__ import annotations

from headway.contract.jobs import Page
from headway.contract.machines import MachineView

_WHY = "rented for jobs of this cluster; why in detail is for those who see all projects"


def seen_machines(page: Page[MachineView], seen: frozenset[str] | None) -> Page[MachineView]:
    """The machines without their messages, which name the jobs that gain by them, unless all projects are `seen` (None)."""
    if seen is None:
        return page
    items = [one.model_copy(update={"message": _WHY}) for one in page.items]
    return page.model_copy(update={"items": items})
