"""Demands of jobs with nodes as numbers, and the pieces in which their layouts must lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.domain.allocation.configurations.shapes import pieces_of
from service.domain.allocation.placement.repack import SlotDemand, demands
from service.domain.shared.arrays import IntArray
from tests.unit.service.domain.allocation.clusters import Cluster


def demand(
    slots: int, own: Mapping[int, int] | None = None, *, node_slots: int = 4, unit: int | None = None
) -> SlotDemand:
    """A job that holds `own` and is to get `slots`, in the largest pieces unless `unit` is smaller."""
    held = dict(own or {})
    largest = 1 << (node_slots.bit_length() - 1)
    return SlotDemand(
        slots=slots,
        pieces=pieces_of(slots, node_slots, largest if unit is None else unit),
        own=held,
        stays=0 < slots == sum(held.values()),
    )


def demands_of(cluster: Cluster, chosen: IntArray) -> list[SlotDemand]:
    """The demands of a choice for the jobs of a cluster."""
    return [
        demand(
            want.slots,
            {int(node): len(slots) for node, slots in want.held.items() if slots},
            node_slots=cluster.shapes.node_slots,
            unit=min(want.unit, 1 << (cluster.shapes.node_slots.bit_length() - 1)),
        )
        for want in cluster.wants(chosen)
    ]


def blocks(room: Sequence[int], level: int) -> int:
    """Slots in whole blocks of 2^level."""
    return sum(slots >> level << level for slots in room)


def in_pieces(claim: SlotDemand) -> bool:
    """Return True if the layout of a job has whole blocks for all of its pieces."""
    needs = demands(claim.pieces, len(claim.pieces))
    return all(blocks(list(claim.laid.values()), level) >= slots for level, slots in enumerate(needs))


def slack_of(claims: Sequence[SlotDemand], room: Sequence[int], levels: int) -> list[int]:
    """The invariant of `packing`, counted anew: whole blocks that are free less those still to be laid out."""
    missing = [demands(claim.pieces, levels) for claim in claims if not claim.laid]
    return [blocks(room, level) - sum(needs[level] for needs in missing) for level in range(levels)]
