"""The container files agree with each other and with the tree. No container engine is needed."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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


def test_only_what_people_open_is_published_and_on_the_loopback_interface() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"api", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_without_a_profile_there_is_a_whole_headway_and_no_more() -> None:
    profiles = {name: tuple(service.get("profiles", ())) for name, service in SERVICES.items()}
    assert set(profiles.values()) == {(), ("storage",), ("monitoring",)}
    always = {name for name, needed in profiles.items() if not needed}
    assert always == {"postgres", "redis", "migrate", "api", "scheduler", "agent-1", "agent-2"}
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            may_be_missing = profiles[other] not in {(), profiles[name]}
            assert how.get("required", True) is not may_be_missing, f"{name} waits for {other}"


def test_settings_of_the_service_are_ones_that_it_reads() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "service").glob("*settings.py"))
    sources += (ROOT / "worker_agent" / "main.py").read_text() + (
        ROOT / "worker_agent" / "options.py"
    ).read_text()
    given = {
        name
        for service in OUR_IMAGES
        for name in SERVICES[service].get("environment", {})
        if name.startswith("HEADWAY_")
    }
    assert given
    assert {name for name in given if f'"{name}"' not in sources} == set()


def test_mounted_files_are_in_the_tree() -> None:
    mounted = [
        volume.split(":")
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) == 6
    for source, target, mode in mounted:
        assert (ROOT / source).is_file(), source
        assert target.startswith("/")
        assert mode == "ro"


def test_grafana_finds_its_numbers_and_its_dashboard() -> None:
    folder = ROOT / "deploy" / "monitoring"
    (source,) = yaml.safe_load((folder / "grafana" / "source.yaml").read_text())["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert SERVICES[host]["image"].startswith("prom/")
    assert f":{port}/" in SERVICES[host]["healthcheck"]["test"][-1]
    (provider,) = yaml.safe_load((folder / "grafana" / "dashboards.yaml").read_text())["providers"]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/headway.json" in targets
    jobs = {
        one["job_name"]: one
        for one in yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"]
    }
    assert jobs["headway"]["static_configs"][0]["targets"] == ["api:8123"]
    scheduler = jobs["headway-scheduler"]["static_configs"][0]["targets"]
    assert scheduler == [f"scheduler:{port_of('scheduler', 'HEADWAY_METRICS_LISTEN')}"]
    (agents,) = yaml.safe_load((folder / "agents-compose.yaml").read_text())
    assert agents["targets"] == [
        f"{name}:{port_of(name, 'HEADWAY_AGENT_METRICS_LISTEN')}" for name in ("agent-1", "agent-2")
    ]


def port_of(service: str, setting: str) -> str:
    port: str = SERVICES[service]["environment"][setting].rpartition(":")[2]
    return port


def test_extras_that_images_install_are_in_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    named = re.findall(r"\$\{wheel\}\[([\w,]+)\]", text) + re.findall(
        r'^ARG AGENT_EXTRAS="(.+)"$', text, re.MULTILINE
    )
    assert named == ["service,ec2", "agent,train"]
    assert {extra for one in named for extra in one.split(",")} <= set(extras)


def test_services_have_images_or_builds_with_fixed_versions() -> None:
    for name, service in SERVICES.items():
        if name not in OUR_IMAGES:
            assert re.search(r":v?\d", service["image"]), f"{name} floats"


def test_named_volumes_are_declared() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", ())]
    used = {volume.split(":")[0] for volume in volumes if not volume.startswith(".")}
    assert used == set(COMPOSE["volumes"])
