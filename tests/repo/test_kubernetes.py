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

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    one for name in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())
]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"]
    for one in OBJECTS
    if "template" in one.get("spec", {})
}


def test_every_file_is_part_of_the_whole() -> None:
    files = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(KUSTOMIZATION["resources"])


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_an_object_is_as_its_schema_says(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, "1.31", strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OBJECTS[0], "spek": {}}, "1.31", strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_takes_what_the_kustomization_makes(name: str) -> None:
    made = {one["name"] for one in [*KUSTOMIZATION["configMapGenerator"], *KUSTOMIZATION["secretGenerator"]]}
    images = {one["name"] for one in KUSTOMIZATION["images"]}
    for container in PODS[name]["containers"]:
        assert container["image"] in images
        assert {next(iter(one.values()))["name"] for one in container["envFrom"]} <= made
        volumes = {one["name"] for one in PODS[name]["volumes"]}
        assert {one["name"] for one in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", sorted(set(PODS) - {"headway-agent"}))
def test_the_service_runs_as_an_ordinary_user(name: str) -> None:
    assert PODS[name]["securityContext"]["runAsNonRoot"]
    assert all(not one["securityContext"]["allowPrivilegeEscalation"] for one in PODS[name]["containers"])


def test_secrets_are_settings_and_have_no_value() -> None:
    settings = (ROOT / "service" / "settings.py").read_text()
    for example in FOLDER.glob("*.env.example"):
        for line in example.read_text().splitlines():
            name, _, value = line.partition("=")
            assert f'"{name}"' in settings
            assert not value or re.search("PASSWORD|BUCKET", value), line


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: the whole is not put together"
)
def test_the_whole_can_be_put_together(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "k")
    for example in FOLDER.glob("*.env.example"):
        shutil.copy(example, tmp_path / "k" / example.name.removesuffix(".example"))
    built = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "k"], capture_output=True, text=True, check=True
    )
    objects = [one for one in yaml.safe_load_all(built.stdout) if one]
    assert {one["kind"] for one in objects} >= {"DaemonSet", "Deployment", "Job", "Secret", "ConfigMap"}
    assert all(one["metadata"].get("namespace", "headway") == "headway" for one in objects)
