"""Recorded spot capacity: traces of the available instances per tick.

The format is that of the data of "Can't Be Late" (Wu et al., NSDI'24): JSON with `metadata.gap_seconds` and
`data`, the number of available instances at each tick.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from service.domain.shared.arrays import FloatArray, IntArray
from service.simulation.model.world import BadInput, SpotTrace


def read_spot(file: Path) -> SpotTrace:
    """Return the trace in a file. Raise BadInput."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{file}: is not valid JSON: {error}") from error
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if isinstance(gap_s, bool) or not isinstance(gap_s, int | float) or not 0 < gap_s < 1e9:
        raise BadInput(f"{file}: metadata.gap_seconds: is not a positive number of seconds")
    ticks = content.get("data")
    if not isinstance(ticks, list) or not ticks:
        raise BadInput(f"{file}: data: is not a list with at least one tick")
    for index, tick in enumerate(ticks):
        if isinstance(tick, bool) or not isinstance(tick, int) or tick < 0:
            raise BadInput(f"{file}: data[{index}]: {tick!r} is not a number of instances")
    return SpotTrace(gap_s=float(gap_s), available=tuple(ticks))


def changes_of(trace: SpotTrace, nodes: int) -> tuple[float, FloatArray, IntArray]:
    """Return the effect of a trace on a number of nodes.

    The result has the length of the trace in seconds, the times (T,) at which the number of present nodes
    changes, the first of them 0, and the numbers from then on (T,). A trace that never
    reaches the number of nodes comes from a smaller request and is scaled up in proportion.
    """
    counts = np.array(trace.available, dtype=np.int64)
    most = max(int(counts.max()), 1)
    counts = np.minimum(counts, nodes) if most >= nodes else counts * nodes // most
    ticks = np.flatnonzero(np.diff(counts, prepend=-1))
    return trace.gap_s * len(counts), ticks.astype(np.float64) * trace.gap_s, counts[ticks]
