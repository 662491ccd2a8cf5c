"""Text on the topology levels that a job's slots cross, and what crossing costs."""

from __future__ import annotations

import math

from headway.contract.values.listing import all_of
from headway.contract.values.topology import LABEL_LEVELS, LEVELS, SLOW_LINK, level_number
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.placement.placed_speed import level_of, placed_step_s
from service.domain.jobs.job import Allocation

_WORDS = {"nvlink": "NVLink domain", "rack": "rack", "zone": "zone"}
_SLOW_LINK = level_number(SLOW_LINK)


def crossing_text(round_: Round, row: int, column: int, allocation: Allocation) -> str:
    """Return text on the place of slots on several nodes; empty if no level applies to these nodes.

    Examples: `within rack r1: across racks it would be 0.82 times as fast`, `across racks r1 and r2: 0.82 times as fast
    as within one`.
    """
    nodes = [round_.snapshot.nodes[node] for node in allocation if node in round_.snapshot.nodes]
    if len(nodes) < 2 or column < 0:
        return ""
    crossed = level_of(round_, allocation)
    if crossed == _SLOW_LINK:
        share = _share(round_, row, column, len(nodes), crossed)
        cost = "" if share is None else f", {share:.2f} times as fast as without"
        return f"across a slow link ({slow_links_of(round_, allocation)}){cost}"
    if crossed:
        word = _WORDS[LEVELS[crossed - 1]]
        names = sorted({node.labels.get(LEVELS[crossed - 1], "no name") for node in nodes})
        share = _share(round_, row, column, len(nodes), crossed)
        cost = "" if share is None else f": {share:.2f} times as fast as within one"
        return f"across {word}s {_listed(names)}{cost}"
    shared = next((level for level in LABEL_LEVELS if level in nodes[0].labels), None)
    if shared is None:
        return ""
    share = _share(round_, row, column, len(nodes), LEVELS.index(shared) + 1)
    others = any(
        node.labels.get(shared) != nodes[0].labels[shared] for node in round_.snapshot.nodes.values()
    )
    cost = f": across {_WORDS[shared]}s it would be {share:.2f} times as fast" if share and others else ""
    return f"within {_WORDS[shared]} {nodes[0].labels[shared]}{cost}"


def slow_links_of(round_: Round, allocation: Allocation) -> str:
    """Return what was measured of the slow links of an allocation's nodes."""
    nodes = round_.snapshot.nodes
    return _listed([nodes[node].slow_link for node in allocation if node in nodes and nodes[node].slow_link])


def _listed(names: list[str]) -> str:
    few = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return all_of(few)


def _share(round_: Round, row: int, column: int, nodes: int, level: int) -> float | None:
    """Return the speed across a level relative to within it; None for a job of unknown speed."""
    if not round_.estimates.known[row]:
        return None
    labelled = {name for node in round_.snapshot.nodes.values() for name in node.labels}
    below = max((number for number in range(1, level) if LEVELS[number - 1] in labelled), default=0)
    fast, slow = (placed_step_s(round_, row, column, nodes=nodes, level=one) for one in (below, level))
    return fast / slow if 0 < fast < math.inf and 0 < slow < math.inf else None
