"""Topology labels of nodes: the NVLink domain, rack and zone that a host belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator

LABEL_LEVELS: Final = ("nvlink", "rack", "zone")
"""Levels above the host that nodes have labels of, smallest first: an NVLink domain of several hosts, a rack, and a zone."""
SLOW_LINK: Final = "link"
"""The largest level, which no user labels: a host whose measured link is slow is alone on its side of it."""
LEVELS: Final = (*LABEL_LEVELS, SLOW_LINK)
"""All levels that a job's nodes may cross, smallest first."""
_LABEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels in the order of the levels. Raise ValueError for an unknown level or a malformed label."""
    for level, label in labels.items():
        if level not in LABEL_LEVELS:
            raise ValueError(f"{level!r} is not a topology level; the levels are {', '.join(LABEL_LEVELS)}")
        if not _LABEL.match(label):
            raise ValueError(
                f"{level}={label!r}: use at most 63 letters, digits, dots, hyphens, underscores and slashes"
            )
    return {level: labels[level] for level in LABEL_LEVELS if level in labels}


TopologyLabels: TypeAlias = Annotated[dict[str, str], AfterValidator(checked_labels)]
"""Labels of a node by level."""


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of a text such as `rack=r7,zone=a`. Raise ValueError."""
    labels: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        level, equals, label = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not a label; write it like rack=r7")
        if level in labels:
            raise ValueError(f"{level} is given twice")
        labels[level] = label
    return checked_labels(labels)


def crossed_level(labels: Iterable[Mapping[str, str]]) -> str:
    """Return the largest level at which the labels of nodes differ; empty if they differ at none.

    A missing label differs from every label, but not from another missing one.
    """
    nodes = list(labels)
    crossed = (level for level in reversed(LEVELS) if len({one.get(level, "") for one in nodes}) > 1)
    return next(crossed, "")


def placed_labels(labels: Mapping[str, str], node_id: str, slow_link: str) -> Mapping[str, str]:
    """Return the labels by which jobs are placed: those of the node, and a level of its own if its link is slow."""
    return {**labels, SLOW_LINK: node_id} if slow_link else labels


def path_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels of a node in the order of the levels, empty where it has none."""
    return tuple(labels.get(level, "") for level in LEVELS)


def level_number(level: str) -> int:
    """Return the number of a level from 1 on; 0 for an empty or unknown name."""
    return LEVELS.index(level) + 1 if level in LEVELS else 0


def level_name(number: int) -> str:
    """Return the name of a level by number; empty for 0."""
    return LEVELS[number - 1] if number > 0 else ""
