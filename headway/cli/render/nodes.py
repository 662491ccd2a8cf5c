"""Tables of nodes and their slots. All functions take values and return renderables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns, ranges
from headway.contract.agents import NodeState
from headway.contract.health import QuarantineView
from headway.contract.views.nodes import NodeView, SlotView

_NODE_STYLES = {
    NodeState.READY: "green",
    NodeState.CORDONED: "yellow",
    NodeState.DRAINING: "yellow",
    NodeState.DRAINED: "dim",
    NodeState.LOST: "bold red",
}


def nodes_table(nodes: Sequence[NodeView]) -> Table:
    """Return the table of `headway nodes`."""
    names = ("NAME", "STATE", "ADDRESS", "KIND", ">BUSY", ">LEASE", "CONTAINERS")
    table = columns(*names, fold=["SLOTS", "WHY"])
    for node in nodes:
        busy = sum(slot.job_id is not None for slot in node.slots)
        why = [f"slot {slot.index}: {quarantine(slot.quarantine)}" for slot in node.slots if slot.quarantine]
        why += [f"slot {slot.index}: {slot.slow}" for slot in node.slots if slot.slow]
        table.add_row(
            node.name,
            Text(node.state, style=_NODE_STYLES[node.state]),
            node.address,
            ", ".join(sorted({slot.device_kind for slot in node.slots})),
            f"{busy}/{len(node.slots)}",
            f"{node.lease_remaining_s:.0f}s" if node.lease_remaining_s >= 0 else "over",
            node.container_engine or "-",
            holders(node.slots),
            Text("\n".join(filter(None, (node.message, *why)))),
        )
    return table


def quarantine(one: QuarantineView) -> str:
    """Return a quarantine as text: `in quarantine since 12-01 12:00:05, fatal: Xid 79; until it is released`."""
    probe_at = one.probe_at
    until = "until it is released" if probe_at is None else f"next probe {probe_at.astimezone():%H:%M:%S}"
    return f"in quarantine since {one.since.astimezone():%m-%d %H:%M:%S}, {one.grade}: {one.message}; {until}"


def holders(slots: Iterable[SlotView]) -> str:
    """Return the holders of slots, such as `digits 0-1, free 2-3`."""
    indices: dict[str, list[int]] = {}
    for slot in sorted(slots, key=lambda slot: slot.index):
        holder = slot.job_name or slot.job_id or ("quarantined" if slot.quarantine else "free")
        indices.setdefault(holder, []).append(slot.index)
    return ", ".join(f"{holder} {ranges(held)}" for holder, held in indices.items())
