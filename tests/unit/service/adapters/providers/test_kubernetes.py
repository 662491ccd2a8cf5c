"""Settings of the Kubernetes provider, what nodes have left, access, and the meaning of errors."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from service.adapters.providers.kubernetes_client import ApiFailed, find_access, read_kubeconfig
from service.adapters.providers.kubernetes_nodes import Shape, levels_of, quantity, requested, shapes
from service.adapters.providers.kubernetes_pods import pod_name
from service.adapters.providers.kubernetes_settings import read_kubernetes_settings
from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable
from service.environment import SettingsError

NEEDED = {"HEADWAY_KUBERNETES_IMAGE": "agent:1", "HEADWAY_KUBERNETES_SPOT": "cpu=0.05"}
TOPOLOGY = {"rack": "site/rack", "zone": "topology.kubernetes.io/zone"}


def node(name: str, labels: dict[str, str] | None = None, **allocatable: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "10"} | {
        key.replace("gpu", "nvidia.com/gpu"): value for key, value in allocatable.items()
    }
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": ready},
    }


def pod(where: str, **requests: str) -> dict[str, Any]:
    return {"spec": {"nodeName": where, "containers": [{"resources": {"requests": requests}}]}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", "0.5"), ("16Gi", str(16 << 30)), ("2", "2"), ("1e3", "1000"), ("1.5k", "1500"), (4, "4")],
)
def test_quantity_is_its_number(text: object, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1Zi", "1.2.3", "-"])
def test_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def test_pod_counts_its_containers_and_sidecars_or_a_larger_first_step_and_its_overhead() -> None:
    def container(cpu: str, **fields: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("1", restartPolicy="Always"), container("2")],
        "overhead": {"cpu": "250m"},
    }
    assert requested({"spec": spec})["cpu"] == Decimal("2.75")
    spec["initContainers"] = [container("4")]
    assert requested({"spec": spec})["cpu"] == Decimal("4.25")


def test_shape_is_what_a_node_has_left_in_whole_slots() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "site/rack": "r1",
        "topology.kubernetes.io/zone": "a",
    }
    nodes = [
        node("g", labels, gpu="8", cpu="100", memory="800Gi"),
        node("c", cpu="7900m"),
        node("full", cpu="1"),
    ]
    others = [pod("g", **{"nvidia.com/gpu": "3"}), pod("c", cpu="500m"), pod("full", cpu="100m")]
    slot = {"cpu": Decimal(1), "memory": quantity("1Gi")}
    assert shapes(nodes, others, slot, TOPOLOGY, {}) == {Shape("a/r1", "h100", 5), Shape("", "cpu", 7)}
    assert levels_of("a/r1", TOPOLOGY) == {"zone": "a", "rack": "r1"}
    tight = {"cpu": Decimal(1), "memory": quantity("200Gi")}
    assert shapes(nodes, others, tight, {}, {}) == {Shape("", "h100", 4)}


@pytest.mark.parametrize(
    ("spec", "template", "usable"),
    [
        ({}, {}, True),
        ({"unschedulable": True}, {}, False),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {}, False),
        ({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, {}, True),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            {"tolerations": [{"key": "k", "operator": "Exists"}]},
            True,
        ),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]},
            {"tolerations": [{"key": "k", "value": "w"}]},
            False,
        ),
        ({}, {"nodeSelector": {"pool": "x"}}, False),
    ],
)
def test_node_that_takes_no_pod_of_the_template_is_left_out(
    spec: dict[str, Any], template: dict[str, Any], usable: bool
) -> None:
    one = {**node("n"), "spec": spec}
    assert bool(shapes([one], [], {"cpu": Decimal(1)}, {}, template)) is usable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADWAY_KUBERNETES_IMAGE", ""),
        ("HEADWAY_KUBERNETES_SPOT", ""),
        ("HEADWAY_KUBERNETES_SPOT", "cpu"),
        ("HEADWAY_KUBERNETES_SPOT", "cpu=0"),
        ("HEADWAY_KUBERNETES_NAMESPACE", "Two Words"),
        ("HEADWAY_KUBERNETES_SLOT", "cpu=many"),
        ("HEADWAY_KUBERNETES_SLOT", "memory=1Gi"),
        ("HEADWAY_KUBERNETES_SLOT", "cpu=1,nvidia.com/gpu=1"),
        ("HEADWAY_KUBERNETES_TOPOLOGY", "row=site/row"),
        ("HEADWAY_KUBERNETES_QUEUE", "-x"),
        ("HEADWAY_KUBERNETES_POD", "/absent.yaml"),
        ("HEADWAY_KUBERNETES_WAIT_S", "61"),  # the service itself waits 90 s for a provider
        ("HEADWAY_CLUSTER", "ends-with-"),
    ],
)
def test_wrong_setting_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_kubernetes_settings(NEEDED | {name: value})


@pytest.mark.parametrize(
    "text", ["restartPolicy: Always", "containers: [{image: x}]", "containers: [{}, {}]", "[1]"]
)
def test_template_that_would_change_a_lease_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pod.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="HEADWAY_KUBERNETES_POD"):
        read_kubernetes_settings(NEEDED | {"HEADWAY_KUBERNETES_POD": str(tmp_path / "pod.yaml")})


def test_name_of_a_pod_follows_from_cluster_and_lease() -> None:
    assert pod_name("a", "m-1") == pod_name("a", "m-1")
    assert len({pod_name("a", "m-1"), pod_name("b", "m-1"), pod_name("a", "m-2"), pod_name("a", "M-1")}) == 4


@pytest.mark.parametrize(
    ("code", "message", "kind", "launching_kind"),
    [
        (400, "", Unavailable, ProviderRefused),
        (401, "", Unavailable, Unavailable),
        (403, "pods is forbidden", Unavailable, ProviderRefused),
        (403, "forbidden: exceeded quota: few", Unavailable, NoCapacity),
        (409, "the object has been modified", Unavailable, Unavailable),
        (410, "too old", Unavailable, Unavailable),
        (422, "invalid", Unavailable, ProviderRefused),
        (429, "too many", Unavailable, Unavailable),
        (500, "", Unavailable, Unavailable),
        (504, "", Unavailable, Unavailable),
    ],
)
def test_error_of_the_server_has_one_meaning(
    code: int, message: str, kind: type[HeadwayServiceError], launching_kind: type[HeadwayServiceError]
) -> None:
    failed = ApiFailed(httpx.Response(code, json={"reason": "R", "message": message}))
    assert type(failed.meaning("list")) is kind
    assert type(failed.meaning("start", launching=True)) is launching_kind


def test_retry_after_is_passed_on() -> None:
    failed = ApiFailed(httpx.Response(429, headers={"Retry-After": "7"}, text="no JSON"))
    error = failed.meaning("list")
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 7.0


@pytest.mark.parametrize("user", [{"exec": {"command": "x"}}, {"auth-provider": {}}, {"username": "u"}])
def test_kubeconfig_that_needs_a_program_or_a_password_is_refused(
    tmp_path: Path, user: dict[str, Any]
) -> None:
    path = tmp_path / "config"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://h"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(SettingsError, match=next(iter(user))):
        read_kubeconfig(path)


def test_no_access_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="KUBECONFIG"):
        find_access({"HOME": str(tmp_path)})
    (tmp_path / "config").write_text("current-context: none", encoding="utf-8")
    with pytest.raises(SettingsError, match="no usable current context"):
        find_access({"KUBECONFIG": str(tmp_path / "config")})
