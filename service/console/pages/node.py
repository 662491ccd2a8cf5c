"""The page of one node: its slots, their holders and their problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.nodes import NodeView, SlotView
from service.console.html.badges import cell_of, tone_of_node
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import NONE, iso, stamp, usd
from service.console.pages.cluster import words_of_slots


@dataclass(frozen=True, slots=True)
class NodeHead:
    """The head of the page, and the possible actions."""

    id: str
    name: str
    state: str
    tone: str
    message: str
    words: str
    address: str
    joined: str
    joined_iso: str
    version: str
    market: str
    price: str
    engine: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of the node."""

    node_id: str
    node: str
    index: int
    kind: str
    cell: str
    job_id: str | None
    job: str
    health: str
    problem: str
    since: str
    since_iso: str
    verbs: tuple[str, ...]


def node_fragments(node: NodeView, *, may_operate: bool, colours: Mapping[str, int]) -> list[Content]:
    """Return the fragments of the page. With `may_operate`, the viewer may drain and cordon the node and release slots."""
    verbs: tuple[str, ...] = ()
    if may_operate and node.state is NodeState.READY:
        verbs = ("cordon", "drain")
    elif may_operate and node.state is not NodeState.LOST:
        verbs = ("uncordon",) if node.state is not NodeState.CORDONED else ("uncordon", "drain")
    head = NodeHead(
        id=node.id,
        name=node.name,
        state=node.state.lower(),
        tone=tone_of_node(node.state),
        message=node.message,
        words=words_of_slots(node.slots),
        address=node.address,
        joined=stamp(node.joined_at),
        joined_iso=iso(node.joined_at),
        version=node.agent_version,
        market="spot" if node.market is Market.SPOT else "on demand",
        price=f"{usd(node.usd_per_slot_h)} an hour each" if node.usd_per_slot_h is not None else "",
        engine=node.container_engine.capitalize() if node.container_engine else NONE,
        verbs=verbs,
    )
    rows = tuple(
        Fragment(f"slot-{one.index}", "slot_row", _slot(node, one, may_operate=may_operate, colours=colours))
        for one in node.slots
    )
    return [Fragment("node-head", "node_head", head), Listing("slots", rows)]


def _slot(node: NodeView, slot: SlotView, *, may_operate: bool, colours: Mapping[str, int]) -> SlotRow:
    ill = slot.quarantine
    parts = []
    if slot.health.temperature_c is not None:
        parts.append(f"{slot.health.temperature_c} °C")
    if slot.health.memory_used_bytes is not None:
        parts.append(f"{slot.health.memory_used_bytes / 2**30:.1f} GiB used")
    if slot.health.ecc_uncorrected:
        parts.append(f"{slot.health.ecc_uncorrected} ECC errors")
    return SlotRow(
        node_id=node.id,
        node=node.name,
        index=slot.index,
        kind=slot.device_kind,
        cell=cell_of(slot, colours),
        job_id=slot.job_id,
        job=slot.job_name or "free",
        health=", ".join(parts) or NONE,
        problem=f"in quarantine, {ill.grade.replace('_', ' ')}: {ill.message}"
        if ill is not None
        else slot.slow,
        since=stamp(ill.since) if ill is not None else "",
        since_iso=iso(ill.since) if ill is not None else "",
        verbs=() if not may_operate else ("quarantine",) if ill is None else ("release",),
    )
