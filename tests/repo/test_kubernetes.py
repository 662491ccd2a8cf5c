"""The manifests are what Kubernetes expects, and agree with each other and with the settings. No cluster is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.adapters.providers.kubernetes_settings import read_kubernetes_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())


def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


KUSTOMIZATIONS = {path.parent: read(path) for path in FOLDER.rglob("kustomization.yaml")}
OBJECTS: list[dict[str, Any]] = [
    one
    for folder, kustomization in KUSTOMIZATIONS.items()
    for name in kustomization["resources"]
    if name.endswith(".yaml")
    for one in yaml.safe_load_all((folder / name).read_text(encoding="utf-8"))
]


def name_of(one: dict[str, Any]) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """An overlay with the example's secrets, as `kubectl apply -k` puts it together."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the overlays are not put together")
    copy = tmp_path_factory.mktemp("overlay") / "kubernetes"
    shutil.copytree(FOLDER, copy)
    overlay = copy / "overlays" / request.param
    for example in overlay.glob("*.env.example"):
        shutil.copy(example, example.with_suffix(""))
    done = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def pods_of(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name_of(one): one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})
    }


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda one: one.name)
def test_every_file_is_part_of_the_whole(folder: Path) -> None:
    made = KUSTOMIZATIONS[folder]
    used = {name for name in made["resources"] if name.endswith(".yaml")}
    used |= {one["path"] for one in made.get("patches", ()) if "path" in one}
    used |= {name for one in made.get("configMapGenerator", ()) for name in one.get("files", ())}
    assert {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"} == used


@pytest.mark.parametrize("one", OBJECTS, ids=name_of)
def test_an_object_is_as_its_schema_says(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, "1.31", strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OBJECTS[0], "spek": {}}, "1.31", strict=True)


def test_overlay_is_as_the_schemas_say(built: list[dict[str, Any]]) -> None:
    for one in built:
        kubernetes_validate.validate(one, "1.31", strict=True)


def test_pod_takes_what_the_overlay_makes(built: list[dict[str, Any]]) -> None:
    made = {one["metadata"]["name"] for one in built if one["kind"] in {"ConfigMap", "Secret"}}
    pods = pods_of(built)
    assert len(pods) >= 3
    for pod in pods.values():
        for container in pod["containers"]:
            assert container["image"] in {"headway-service:0.1.0", "headway-agent:0.1.0"}
            assert {next(iter(one.values()))["name"] for one in container["envFrom"]} <= made
            assert {one["name"] for one in container["volumeMounts"]} == {
                one["name"] for one in pod["volumes"]
            }


def test_service_runs_as_an_ordinary_user(built: list[dict[str, Any]]) -> None:
    for name, pod in pods_of(built).items():
        if name != "DaemonSet headway-agent":
            assert pod["securityContext"]["runAsNonRoot"]
            assert all(not one["securityContext"]["allowPrivilegeEscalation"] for one in pod["containers"])


def test_namespaced_object_is_in_a_namespace_of_headway(built: list[dict[str, Any]]) -> None:
    cluster_wide = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
    for one in built:
        namespace = one["metadata"].get("namespace")
        assert namespace in ({None} if one["kind"] in cluster_wide else {"headway", "headway-pods"}), name_of(
            one
        )


def test_settings_of_rented_pods_are_ones_that_the_provider_takes(tmp_path: Path) -> None:
    overlay = FOLDER / "overlays" / "pods"
    (literals,) = (
        one["literals"] for one in KUSTOMIZATIONS[overlay]["configMapGenerator"] if "literals" in one
    )
    given = dict(one.split("=", 1) for one in literals)
    settings = read_kubernetes_settings(given | {"HEADWAY_KUBERNETES_POD": str(overlay / "pod.yaml")})
    classes = {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "PriorityClass"}
    assert set(settings.classes.values()) <= classes
    accounts = {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "ServiceAccount"}
    assert settings.template["serviceAccountName"] in accounts


def test_secrets_are_settings_and_have_no_value() -> None:
    settings = (ROOT / "service" / "settings.py").read_text(encoding="utf-8")
    for example in FOLDER.rglob("*.env.example"):
        for line in example.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            assert f'"{name}"' in settings
            assert not value or re.search("PASSWORD|BUCKET", value), line
