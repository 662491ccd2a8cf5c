"""Settings of pods of Kubernetes, from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from headway.contract.values.devices import parse_prices
from headway.contract.values.markets import Market
from service.adapters.providers.kubernetes_nodes import GPU, LEVELS, quantity
from service.environment import SettingsError, cluster_of, number_of, text_of

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_A_CLASS = "the name of a PriorityClass"
_ZONE = "zone=topology.kubernetes.io/zone"
_OURS = frozenset(
    {"restartPolicy", "terminationGracePeriodSeconds", "priorityClassName", "nodeName", "priority"}
)
"""Fields of a pod that the provider sets itself, or that would change what a lease is."""
_OURS_OF_AGENT = frozenset({"name", "image", "args", "command", "resources"})
_GRACE_S, _MOST_GRACE_S = 60.0, 3600.0
_WAIT_S = 10.0
_MOST_WAIT_S = 60.0
"""The service waits 90 s for a provider, requests included, and then no longer knows whether there is a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Settings of the use of one namespace by one cluster of Headway."""

    cluster: str
    """Name of this cluster of Headway, a label of its pods."""
    namespace: str
    """Namespace of the pods; empty for the one of the service's own pod or of its kubeconfig."""
    image: str
    """Image with the agent as its entry point, the libraries of the jobs included."""
    prices: Mapping[Market, Mapping[str, float]]
    """Price of a slot in USD per hour, by market and device kind. Other kinds are not used."""
    classes: Mapping[Market, str] = field(default_factory=dict)
    """Priority class of the pods of a market."""
    queue: str = ""
    """Local queue of Kueue; empty for none."""
    slot: Mapping[str, Decimal] = field(default_factory=lambda: {"cpu": Decimal(1)})
    """Resources that a slot requests, beside its GPU."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Label of nodes by placement level."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the pod's `spec` that the site adds, such as `nodeSelector`, `tolerations` and `volumes`."""
    grace_s: int = int(_GRACE_S)
    """Seconds from SIGTERM to SIGKILL."""
    wait_s: float = _WAIT_S
    """Time that a pod may wait for a node. Longer means that there is no free node."""


def read_kubernetes_settings(env: Mapping[str, str]) -> KubernetesSettings:
    """Return the settings of the environment.

    Raises:
        SettingsError: a setting is missing or wrong.
    """
    named = {
        Market.SPOT: _matching(env, "HEADWAY_KUBERNETES_SPOT_CLASS", _NAME, _A_CLASS),
        Market.ON_DEMAND: _matching(env, "HEADWAY_KUBERNETES_ON_DEMAND_CLASS", _NAME, _A_CLASS),
    }
    return KubernetesSettings(
        cluster=_cluster(env),
        namespace=_matching(env, "HEADWAY_KUBERNETES_NAMESPACE", _NAMESPACE, "the name of a namespace"),
        image=text_of(env, "HEADWAY_KUBERNETES_IMAGE"),
        prices=_prices(env),
        classes={market: name for market, name in named.items() if name},
        queue=_matching(env, "HEADWAY_KUBERNETES_QUEUE", _LABEL_VALUE, "the name of a LocalQueue"),
        slot=_slot(env.get("HEADWAY_KUBERNETES_SLOT", "").strip() or "cpu=1"),
        topology=_topology(env.get("HEADWAY_KUBERNETES_TOPOLOGY", _ZONE)),
        template=_template(env.get("HEADWAY_KUBERNETES_POD", "").strip()),
        grace_s=int(number_of(env, "HEADWAY_KUBERNETES_GRACE_S", _GRACE_S, 5, _MOST_GRACE_S)),
        wait_s=number_of(env, "HEADWAY_KUBERNETES_WAIT_S", _WAIT_S, 1, _MOST_WAIT_S),
    )


def _cluster(env: Mapping[str, str]) -> str:
    name = cluster_of(env)
    if not _LABEL_VALUE.fullmatch(name):
        raise SettingsError(
            f"HEADWAY_CLUSTER: {name!r} labels pods, so it must end with a letter or a digit."
        )
    return name


def _matching(env: Mapping[str, str], name: str, pattern: re.Pattern[str], what: str) -> str:
    value = env.get(name, "").strip()
    if value and not pattern.fullmatch(value):
        raise SettingsError(f"{name}: {value!r} is not {what}.")
    return value


def _prices(env: Mapping[str, str]) -> Mapping[Market, Mapping[str, float]]:
    texts = {
        Market.SPOT: ("HEADWAY_KUBERNETES_SPOT", env.get("HEADWAY_KUBERNETES_SPOT", "")),
        Market.ON_DEMAND: ("HEADWAY_KUBERNETES_ON_DEMAND", env.get("HEADWAY_KUBERNETES_ON_DEMAND", "")),
    }
    found = {}
    for market, (name, text) in texts.items():
        try:
            prices = parse_prices(text)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}.") from error
        free = [kind for kind, usd in prices.items() if usd == 0]
        if free:
            raise SettingsError(
                f"{name}: {free[0]} must cost more than 0 dollars; what is free is never given back."
            )
        if prices:
            found[market] = prices
    if not found:
        raise SettingsError(
            "Neither HEADWAY_KUBERNETES_SPOT nor HEADWAY_KUBERNETES_ON_DEMAND is set, and HEADWAY_PROVIDERS names "
            "kubernetes; set the price of a slot for an hour by device kind, such as a100=2.2,cpu=0.05."
        )
    return found


def _pairs(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value or key in found:
            raise SettingsError(f"{name}: {part!r} is not of the form NAME=VALUE, each name once.")
        found[key] = value
    return found


def _slot(text: str) -> Mapping[str, Decimal]:
    name = "HEADWAY_KUBERNETES_SLOT"
    try:
        found = {key: quantity(value) for key, value in _pairs(name, text).items()}
    except ValueError as error:
        raise SettingsError(f"{name}: {error}; write it as cpu=8,memory=64Gi.") from error
    wrong = [key for key, value in found.items() if value <= 0 or key == GPU or not _LABEL_KEY.fullmatch(key)]
    if wrong or "cpu" not in found:
        raise SettingsError(
            f"{name}: a slot requests cpu and other resources, each more than 0, and its GPU by itself; write it as "
            f"cpu=8,memory=64Gi, not {text!r}."
        )
    return found


def _topology(text: str) -> Mapping[str, str]:
    name = "HEADWAY_KUBERNETES_TOPOLOGY"
    found = _pairs(name, text)
    for level, label in found.items():
        if level not in LEVELS or not _LABEL_KEY.fullmatch(label):
            raise SettingsError(
                f"{name}: {level}={label} does not name a label of nodes for one of the levels {', '.join(LEVELS)}."
            )
    return found


def _template(path: str) -> Mapping[str, Any]:
    name = "HEADWAY_KUBERNETES_POD"
    if not path:
        return {}
    try:
        spec = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{name}: {path} cannot be read: {error}.") from error
    if not isinstance(spec, dict):
        raise SettingsError(f"{name}: {path} must hold the fields of a pod's `spec`.")
    containers = spec.get("containers") or [{}]
    if not isinstance(containers, list) or len(containers) != 1 or not isinstance(containers[0], dict):
        raise SettingsError(
            f"{name}: {path}: `containers` may hold one container, which is merged into the agent's."
        )
    wrong = sorted((_OURS & spec.keys()) | (_OURS_OF_AGENT & containers[0].keys()))
    if wrong:
        raise SettingsError(
            f"{name}: {path}: Headway sets `{wrong[0]}` itself; remove it (docs/guides/kubernetes.md)."
        )
    return spec
