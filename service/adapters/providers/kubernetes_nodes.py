"""Nodes of Kubernetes as offers: what is allocatable and not requested by the pods of others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from headway.contract.values.devices import kind_name

GPU = "nvidia.com/gpu"
"""Extended resource of NVIDIA's device plugin."""
LEVELS = ("nvlink", "rack", "zone")
"""Placement levels above the host, the smallest first."""
_PRODUCT = "nvidia.com/gpu.product"
"""Label of NVIDIA's GPU feature discovery."""
_UNITS = {
    "": Decimal(1),
    **{
        unit: Decimal(10) ** power
        for unit, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]{0,2})")
_PLACE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Shape:
    """Pods that fit on nodes of one place. `kind` is `cpu` for nodes without GPUs, whose slots are cores.

    `place` holds the value of each level's label, joined by `/` from the largest level on; empty if the nodes lack one.
    """

    place: str
    kind: str
    slots: int

    @property
    def instance_type(self) -> str:
        """Name of the shape among the offers."""
        return f"{self.kind}:{self.slots}"


def quantity(value: object) -> Decimal:
    """Return the number of a quantity of Kubernetes, such as `500m` or `16Gi`, in units or bytes.

    Raises:
        ValueError: it is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{value!r} is not a quantity")
    try:
        return Decimal(match[1]) * _UNITS[match[2]]
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a quantity") from None


def requested(pod: Mapping[str, Any]) -> Counter[str]:
    """Return what the scheduler counts for a pod: its containers and sidecars, or a larger init container, and its overhead."""
    spec = pod["spec"]
    steady: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for one in spec.get("containers", []):
        steady.update(_requests(one))
    for one in spec.get("initContainers", []):
        if one.get("restartPolicy") == "Always":
            steady.update(_requests(one))
        else:
            peak |= _requests(one)
    total = steady | peak
    total.update({name: quantity(value) for name, value in spec.get("overhead", {}).items()})
    return total


def shapes(
    nodes: Iterable[Mapping[str, Any]],
    others: Iterable[Mapping[str, Any]],
    slot: Mapping[str, Decimal],
    topology: Mapping[str, str],
    template: Mapping[str, Any],
) -> set[Shape]:
    """Return the largest shape that fits on each node which pods of this template may use.

    Args:
        nodes: nodes as the API lists them.
        others: pods of others that hold a node.
        slot: resources that a slot requests, beside its GPU.
        topology: label of nodes by placement level.
        template: fields of the pods' `spec`, of which the node selector and the tolerations count.
    """
    held: dict[str, Counter[str]] = {}
    pods: Counter[str] = Counter()
    for pod in others:
        node = pod["spec"].get("nodeName", "")
        held.setdefault(node, Counter()).update(requested(pod))
        pods[node] += 1
    found = set()
    for node in nodes:
        if not _usable(node, template):
            continue
        name = node["metadata"]["name"]
        free = {
            resource: quantity(value) - held.get(name, Counter())[resource]
            for resource, value in node.get("status", {}).get("allocatable", {}).items()
        }
        kind, gpus = (
            _kind(node),
            "" if GPU not in free or not quantity(node["status"]["allocatable"][GPU]) else GPU,
        )
        needs = {**slot, **({GPU: Decimal(1)} if gpus else {})}
        slots = int(min(free.get(resource, Decimal(0)) // amount for resource, amount in needs.items()))
        if slots >= 1 and free.get("pods", Decimal(1)) > pods[name]:
            found.add(
                Shape(place_of(node["metadata"].get("labels", {}), topology), kind if gpus else "cpu", slots)
            )
    return found


def place_of(labels: Mapping[str, str], topology: Mapping[str, str]) -> str:
    """Return the place of a node with these labels, or an empty one if it lacks a level's."""
    values = [labels.get(topology[level], "") for level in reversed(LEVELS) if level in topology]
    return "/".join(values) if all(_PLACE.fullmatch(value) for value in values) else ""


def levels_of(place: str, topology: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each placement level in a place.

    Raises:
        ValueError: the place has another number of levels.
    """
    levels = [level for level in reversed(LEVELS) if level in topology]
    return dict(zip(levels, place.split("/"), strict=True)) if place else {}


def _requests(container: Mapping[str, Any]) -> Counter[str]:
    given = container.get("resources", {}).get("requests", {})
    return Counter({name: quantity(value) for name, value in given.items()})


def _kind(node: Mapping[str, Any]) -> str:
    return kind_name(node["metadata"].get("labels", {}).get(_PRODUCT, ""))


def _usable(node: Mapping[str, Any], template: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels", {})
    spec = node.get("spec", {})
    ready = any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in node.get("status", {}).get("conditions", [])
    )
    tolerations = [*template.get("tolerations", []), {"key": GPU, "operator": "Exists"}]
    wanted = template.get("nodeSelector", {})
    return (
        ready
        and not spec.get("unschedulable")
        and all(labels.get(key) == value for key, value in wanted.items())
        and all(
            taint["effect"] == "PreferNoSchedule" or any(_tolerates(one, taint) for one in tolerations)
            for taint in spec.get("taints", [])
        )
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect", "") not in {"", taint["effect"]}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key", "") in {"", taint["key"]}
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))
