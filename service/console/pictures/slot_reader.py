"""Reader of the chart of slots over time, within limits that hold for any cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from service.console.pictures.slot_geometry import Strip
from service.console.pictures.slot_periods import SlotPeriod, TrainingHistory, histories, slot_periods
from service.console.pictures.slot_picture import HistoryViews
from service.usecases.ports.nodes import HeldSlot, NodeSlots, QuarantinePeriod
from service.usecases.ports.transactions import Transaction

MOST_LANES = 64
"""Maximum number of rows of a chart."""
MOST_GRANTS = 4_000
"""Maximum number of grants that are read for one chart."""


async def read_history(
    tx: Transaction, strip: Strip, *, seen: frozenset[str] | None, only: str | None = None
) -> HistoryViews:
    """Read the history of slots.

    Args:
        tx: transaction to read in.
        strip: strip of time; periods that ended before it are left out.
        seen: projects whose jobs are named; None for all.
        only: id of the only node to read; None for the nodes with the most changes.
    """
    nodes = [one for one in await tx.node_queries.slots() if only is None or one.id == only]
    releases: Mapping[str, int] = {}
    if sum(len(one.slots) for one in nodes) > MOST_LANES and only is None:
        releases = await tx.node_queries.releases([one.id for one in nodes], strip.begins)
    shown = chosen_nodes(nodes, releases)
    ids = [one.id for one in shown]
    held = await tx.node_queries.held(ids, strip.begins, seen=seen, limit=MOST_GRANTS)
    jobs = sorted({one.job_id for one in held if one.job_id})
    turns = await tx.node_queries.turns(jobs, strip.begins)
    sizes = await tx.job_queries.sizes(jobs, strip.begins)
    known = histories(turns, sizes)
    periods: dict[tuple[str, int], list[SlotPeriod]] = {}
    for one in held:
        found = slot_periods(one, strip.begins, known.get(one.job_id, TrainingHistory()))
        periods.setdefault((one.node_id, one.slot), []).extend(found)
    quarantines: dict[tuple[str, int], list[QuarantinePeriod]] = {}
    for kept in await tx.node_queries.quarantined(ids, strip.begins):
        quarantines.setdefault((kept.node_id, kept.slot), []).append(kept)
    hidden = {one.id for one in nodes} - set(ids)
    all_slots = sum(len(one.slots) for one in nodes)
    return HistoryViews(
        nodes=shown,
        periods=periods,
        quarantines=quarantines,
        hidden_nodes=len(hidden),
        hidden_slots=all_slots - sum(len(one.slots) for one in shown),
        hidden_releases=sum(number for node, number in releases.items() if node in hidden),
        complete_from=_complete_from(held),
    )


def chosen_nodes(nodes: Sequence[NodeSlots], releases: Mapping[str, int]) -> list[NodeSlots]:
    """Return the nodes to show, sorted by name: all, or else those with the most changes.

    Slots beyond the limit are left out.
    """
    left = MOST_LANES
    chosen: list[NodeSlots] = []
    for one in sorted(nodes, key=lambda one: (-releases.get(one.id, 0), one.name)):
        if not left:
            break
        if len(one.slots) <= left or not chosen:
            chosen.append(replace(one, slots=one.slots[:left]))
            left -= len(chosen[-1].slots)
    return sorted(chosen, key=lambda one: one.name)


def _complete_from(held: Sequence[HeldSlot]) -> datetime | None:
    """Return the time from which on the chart is complete, or None if every grant was read."""
    if len(held) < MOST_GRANTS:
        return None
    return held[-1].released_at
