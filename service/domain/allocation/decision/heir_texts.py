"""Text on the jobs that get the slots of a stopped job."""

from __future__ import annotations

from collections.abc import Sequence

from service.domain.allocation.decision.reason_texts import NAMED, named
from service.domain.allocation.inputs.round import Round
from service.domain.contention.guaranteed_jobs import smallest_columns


def heirs_text(round_: Round, row: int, heirs: Sequence[int]) -> str:
    """Return the jobs that get the slots of the job `row`, each with its priority and what it gains."""
    if not heirs:
        return "jobs that gain more from them"
    job = round_.jobs[row]
    shown = [
        f"{named([round_.jobs[heir]], job.spec.project)} "
        f"(priority {round_.jobs[heir].spec.priority} against {job.spec.priority}, {_gain(round_, heir)})"
        for heir in heirs[:NAMED]
    ]
    more = f" and {len(heirs) - NAMED} more" if len(heirs) > NAMED else ""
    return ", ".join(shown) + more


def _gain(round_: Round, row: int) -> str:
    """Return what a waiting job gains from its smallest size."""
    column = int(smallest_columns(round_.given)[row])
    if column < 0 or not round_.estimates.known[row]:
        return "its gain is not measured yet"
    unit = round_.jobs[row].progress.unit
    return f"gains {float(round_.estimates.table.goodput[row, column]):,.0f} {unit}/s"
