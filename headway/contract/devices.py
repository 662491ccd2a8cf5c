"""Device kinds by name, so that a typo is found before a job waits for ever."""

from __future__ import annotations

KNOWN_DEVICE_KINDS = frozenset(
    """
    cpu
    k80 p4 p40 p100 v100 t4 a2 a10 a10g a16 a30 a40 a100 l4 l40 l40s h100 h200 h800 h20 gh200
    b100 b200 b300 gb200 gb300
    rtx2080ti rtx3090 rtx4090 rtx5090 rtx6000 rtxa4000 rtxa5000 rtxa6000 rtx6000ada titanrtx
    mi100 mi210 mi250 mi250x mi300a mi300x mi325x mi355x
    """.split()  # noqa: SIM905 - read as prose
)
"""Kinds that may be asked for before a node with one has joined. Kinds of joined nodes come on top."""
