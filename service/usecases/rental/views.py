"""Views of rented machines for readers who see only some projects."""

from __future__ import annotations

from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView

_WHY = "rented for jobs of this cluster; only readers of all projects see the reason"


def seen_machines(page: Page[MachineView], seen: frozenset[str] | None) -> Page[MachineView]:
    """Replace the messages of machines, which name the jobs that they serve, unless all projects are `seen`
    (None).
    """
    if seen is None:
        return page
    items = [one.model_copy(update={"message": _WHY, "job_id": None}) for one in page.items]
    return page.model_copy(update={"items": items})
