"""Clusters from small YAML files, and the configurations and capacity constraints that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from service.domain.allocation.configurations.kind_mixes import divisions
from service.domain.allocation.configurations.shapes import Shapes, packing_rows, regular_sizes, shapes_of
from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import IntArray
from service.simulation.model.spot import read_spot
from service.simulation.model.world import BadInput, Kind

_MOST_NODES, _MOST_SLOTS = 100_000, 1024
_KEYS = ("kind", "nodes", "slots_per_node", "usd_per_slot_h", "spot_share", "spot_file")


def read_cluster(file: Path) -> tuple[Kind, ...]:
    """Return the kinds of a cluster file. Raise BadInput.

    The file has a list `kinds`. Each entry has `kind` (a name), `nodes` and `slots_per_node`. Optional keys
    are `usd_per_slot_h`, `spot_share` (the share of the nodes that are spot, 0 to 1) and `spot_file` (a trace
    of the spot nodes, as a path from the folder of the file). Without a trace, the spot nodes never leave.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f", line {where.line + 1}, column {where.column + 1}" if where else ""
        raise BadInput(
            f"{file}{at}: is not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    listed = content.get("kinds") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed:
        raise BadInput(f"{file}: has no list `kinds` with at least one kind of node")
    kinds = tuple(_kind(file, f"kinds[{index}]", given) for index, given in enumerate(listed))
    names = [kind.name for kind in kinds]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadInput(f"{file}: kinds[{index}].kind: {name!r} is a duplicate")
    return kinds


def _kind(file: Path, at: str, given: object) -> Kind:
    if not isinstance(given, dict):
        raise BadInput(f"{file}: {at}: has no keys; give {', '.join(_KEYS[:3])}")
    for key in given:
        if key not in _KEYS:
            raise BadInput(f"{file}: {at}.{key}: is not a key of a kind; known are {', '.join(_KEYS)}")
    name = given.get("kind")
    if not isinstance(name, str) or not name:
        raise BadInput(f"{file}: {at}.kind: is missing or not a name")
    nodes = int(_number(file, at, given, "nodes", at_least=1, at_most=_MOST_NODES, whole=True))
    slots = int(_number(file, at, given, "slots_per_node", at_least=1, at_most=_MOST_SLOTS, whole=True))
    share = _number(file, at, given, "spot_share", default=0.0, at_most=1.0)
    spot_file = given.get("spot_file")
    if spot_file is not None and not isinstance(spot_file, str):
        raise BadInput(f"{file}: {at}.spot_file: is not a path")
    return Kind(
        name=name,
        node_slots=(slots,) * nodes,
        usd_per_slot_h=_number(file, at, given, "usd_per_slot_h", default=0.0),
        spot_nodes=round(share * nodes),
        spot=None if spot_file is None else read_spot(file.parent / spot_file),
    )


def _number(
    file: Path,
    at: str,
    given: Mapping[Any, object],
    key: str,
    *,
    default: float | None = None,
    at_least: float = 0.0,
    at_most: float = 1e9,
    whole: bool = False,
) -> float:
    value = given.get(key, default)
    if value is None:
        raise BadInput(f"{file}: {at}.{key}: is missing")
    right = isinstance(value, int | float) and not isinstance(value, bool) and at_least <= value <= at_most
    number = float(value) if right and isinstance(value, int | float) else math.nan
    if not right or (whole and number != math.floor(number)):
        kind = "whole number" if whole else "number"
        raise BadInput(f"{file}: {at}.{key}: {value!r} is not a {kind} from {at_least:g} to {at_most:g}")
    return number


def shapes_of_kinds(kinds: Sequence[Kind]) -> tuple[Shapes, ...]:
    """Return the sizes that the service would offer on each kind with all its nodes present."""
    return tuple(
        shapes_of(regular_sizes(sizes), node_slots=sizes, room=sizes)
        for sizes in (np.array(kind.node_slots, dtype=np.int64) for kind in kinds)
    )


def configurations_of(kinds: Sequence[Kind], *, mix: bool = False) -> Configurations:
    """Return the columns: every size of every kind, kind after kind; with `mix` also those of two kinds."""
    shapes = shapes_of_kinds(kinds)
    alone = [
        [slots if at == kind else 0 for at in range(len(kinds))]
        for kind, one in enumerate(shapes)
        for slots in one.slots.tolist()
    ]
    mixed = _mixed_parts(kinds, shapes) if mix else []
    parts = np.array([*alone, *mixed], dtype=np.int64).reshape(-1, len(kinds))
    price = np.array([one.usd_per_slot_h for one in kinds])
    nodes = np.zeros(len(parts), dtype=np.int64)
    for kind, one in enumerate(shapes):
        nodes += np.append(one.nodes, 0)[shape_of_column(one, parts[:, kind])]
    return Configurations(
        kinds=tuple(one.name for one in kinds),
        kind=np.array([np.flatnonzero(one)[-1] for one in parts], dtype=np.int64),
        slots=parts.sum(axis=1),
        nodes=nodes,
        usd_per_h=parts @ price,
        parts=parts if mixed else None,
    )


def _mixed_parts(kinds: Sequence[Kind], shapes: Sequence[Shapes]) -> list[list[int]]:
    """Return the slots by kind of the columns of two kinds, as in the service."""
    found = []
    for first, second in combinations(range(len(kinds)), 2):
        most = kinds[first].slots, kinds[second].slots
        for mine, theirs in divisions(set(range(2, sum(most) + 1)), set(), most):
            if mine in shapes[first].slots and theirs in shapes[second].slots:
                found.append([{first: mine, second: theirs}.get(kind, 0) for kind in range(len(kinds))])
    return found


def parts_by_kind(configurations: Configurations) -> IntArray:
    """Return the slots (C, K) of each kind that a column has."""
    if configurations.parts is not None:
        return configurations.parts
    kinds = np.arange(len(configurations.kinds))
    return np.where(configurations.kind[:, None] == kinds, configurations.slots[:, None], 0)


def shape_of_column(shapes: Shapes, slots: IntArray) -> IntArray:
    """Return the index (C,) of the shape of a kind that has these slots, -1 for none of the kind."""
    return np.where(slots > 0, np.searchsorted(shapes.slots, slots), -1)


def rows_of(
    configurations: Configurations, shapes: Sequence[Shapes], rooms: Sequence[IntArray]
) -> tuple[Row, ...]:
    """Return the constraints of a choice, given the free slots (N,) of the nodes of each kind.

    The first rows limit the slots of each kind, and the others ensure that every choice can be placed.
    """
    parts = parts_by_kind(configurations)
    rows = [
        Row(name=f"slots/{name}", capacity=float(room.sum()), demand=parts[:, index].astype(np.float64))
        for index, (name, room) in enumerate(zip(configurations.kinds, rooms, strict=True))
    ]
    for index, (name, room) in enumerate(zip(configurations.kinds, rooms, strict=True)):
        of_column = shape_of_column(shapes[index], parts[:, index])
        rows += packing_rows(shapes[index], kind=name, room=room, of_column=of_column)
    return tuple(rows)
