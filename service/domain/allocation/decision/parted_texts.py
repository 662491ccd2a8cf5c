"""Explanation of placements that nodes which cannot talk make smaller or prevent."""

from __future__ import annotations

from headway.contract.views.jobs import Reason
from service.domain.allocation.decision.explain import Case
from service.domain.allocation.decision.reason_texts import ReasonText
from service.domain.allocation.placement.placement import Placement
from service.domain.cluster.pools import slots_of
from service.domain.jobs.job import size_of


def why_parted(case: Case, placement: Placement) -> ReasonText:
    """Return the reason that a job gets fewer slots than chosen, or none: nodes that cannot talk."""
    nodes, places = case.round.snapshot.nodes, placement.allocation
    if not places:
        return ReasonText(Reason.UNREACHABLE, f"needs nodes that reach each other: {placement.parted}")
    size, where = slots_of(size_of(places), None), ", ".join(nodes[node].name for node in places)
    return ReasonText(Reason.UNREACHABLE, f"{size} on {where} instead of {case.chosen}: {placement.parted}")
