"""The container files agree with each other and with the tree. No container engine is needed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OUR_IMAGES = [name for name, service in SERVICES.items() if "build" in service]


def stages() -> dict[str, list[str]]:
    """Instructions of each stage of the Dockerfile, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        stage = re.fullmatch(r"FROM \S+ AS (\S+)", line)
        if stage:
            current = found.setdefault(stage[1], [])
        elif line and not line.startswith("#"):
            current.append(line)
    return found


STAGES = stages()


def has_healthcheck(service: dict[str, Any]) -> bool:
    own = service.get("healthcheck")
    if own is not None:
        return not own.get("disable", False)
    target = service.get("build", {}).get("target", "")
    return any(line.startswith("HEALTHCHECK") for line in STAGES.get(target, ()))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_watched_or_runs_once(name: str) -> None:
    service = SERVICES[name]
    runs_once = service["restart"] == "no"
    assert has_healthcheck(service) is not runs_once


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_can_become_true(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert has_healthcheck(SERVICES[other])
        else:
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", OUR_IMAGES)
def test_a_build_target_is_a_stage_that_ends_as_an_ordinary_user(name: str) -> None:
    instructions = STAGES[SERVICES[name]["build"]["target"]]
    user = [line for line in instructions if line.startswith("USER ")][-1]
    assert re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", user)


def test_build_arguments_are_declared_by_the_stages() -> None:
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    given = {argument for name in OUR_IMAGES for argument in SERVICES[name]["build"].get("args", {})}
    assert given <= declared


def test_what_is_copied_into_an_image_is_in_the_tree_and_in_the_build_context() -> None:
    sources = [
        source
        for instructions in STAGES.values()
        for line in instructions
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert set(sources) == allowed


def test_stages_copy_from_stages_that_exist() -> None:
    wanted = {
        stage for lines in STAGES.values() for line in lines for stage in re.findall(r"--from=(\S+)", line)
    }
    assert wanted <= set(STAGES)


def test_every_secret_is_required_and_in_the_example() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    example = re.findall(r"^(\w+)=$", (ROOT / ".env.example").read_text(), flags=re.MULTILINE)
    required = set(re.findall(r"\$\{(\w+):\?", compose))
    optional = set(re.findall(r"\$\{(\w+):-", compose))
    assert required == set(example)
    assert set(re.findall(r"\$\{(\w+)", compose)) == required | optional
    assert not any(re.search("TOKEN|PASSWORD|KEY", name) for name in optional)


def test_only_the_api_is_published_and_on_the_loopback_interface() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["api"]
    assert all(port.startswith("127.0.0.1:") for port in published["api"])


def test_services_have_images_or_builds_with_fixed_versions() -> None:
    for name, service in SERVICES.items():
        if name not in OUR_IMAGES:
            assert re.search(r":\d", service["image"]), f"{name} floats"


def test_named_volumes_are_declared() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])
