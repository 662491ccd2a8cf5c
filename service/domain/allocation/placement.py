"""From counts to slots: who sits where, moving as little as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from service.domain.cluster import SlotKey
from service.domain.jobs import Allocation


def place(count: int, keep: Iterable[SlotKey], free: Iterable[SlotKey]) -> Allocation | None:
    """`count` slots from those held (`keep`) and those free, or None when they do not suffice.

    Held slots go first, from the nodes where most are held, so that a shrinking job leaves its
    smallest outposts. Then free slots: on nodes where the job is already, then on the one node that
    fits the rest most tightly, then on the nodes with most room, so that a job spans few nodes.
    """
    held_on = Counter(key.node_id for key in keep)
    kept = sorted(keep, key=lambda key: (-held_on[key.node_id], key.node_id, key.slot))[:count]
    missing = count - len(kept)
    room: dict[str, list[SlotKey]] = {}
    for key in sorted(free, key=lambda key: (key.node_id, key.slot)):
        room.setdefault(key.node_id, []).append(key)
    if missing > sum(len(slots) for slots in room.values()):
        return None
    chosen = list(kept)
    home = {key.node_id for key in kept}
    while missing > 0:
        node = min(room, key=lambda node: _preference(node, len(room[node]), missing, home))
        taken = room.pop(node)[:missing]
        chosen += taken
        missing -= len(taken)
    return _by_node(chosen)


def _preference(node: str, room: int, missing: int, home: set[str]) -> tuple[bool, bool, int, str]:
    """Smallest first: at home, then tight fits, then much room."""
    fits = room >= missing
    return (node not in home, not fits, room if fits else -room, node)


def _by_node(keys: Iterable[SlotKey]) -> Allocation:
    allocation: dict[str, list[int]] = {}
    for key in keys:
        allocation.setdefault(key.node_id, []).append(key.slot)
    return {node: tuple(sorted(allocation[node])) for node in sorted(allocation)}
