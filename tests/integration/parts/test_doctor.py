from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.doctor_machine import (
    bounds_check,
    disk_check,
    files_check,
    machine_checks,
    open_files_check,
    redis_check,
    secrets_check,
)
from headway.cli.main import app
from headway.cli.verbs.cluster.doctor import DoctorReport, service_checks
from headway.client.client import Client
from headway.contract.views.diagnosis import Level
from tests.unit.headway.stub import StubService, ok, refusal

_LOST = {
    "name": "lost nodes",
    "level": "warn",
    "found": "b is LOST.",
    "why": "Slots stand idle.",
    "hint": "Start it.",
}
_LEADER = {
    "name": "scheduler",
    "level": "fail",
    "found": "No scheduler leads.",
    "why": "Jobs wait.",
    "hint": "Start one.",
}
_WELL = {"name": "storage", "level": "ok", "found": "An object was written.", "why": "", "hint": ""}


def diagnosis(*checks: dict[str, str]) -> Callable[..., object]:
    return ok({"at": "2026-01-01T00:00:00Z", "version": "0", "agent_redis": "", "checks": list(checks)})


@pytest.fixture
def healthy() -> StubService:
    service = StubService()
    service.on("GET /version", ok({"version": "0.0.0"}))
    service.on("GET /livez", ok({}))
    service.on("GET /api/v1/diagnosis", diagnosis(_WELL, _LOST))
    return service


def levels(connect: Callable[[], Client]) -> dict[str, Level]:
    return {check.name: check.level for check in service_checks(Cli(connect=connect))}


def test_a_service_is_looked_at_from_all_sides(healthy: StubService):
    assert levels(healthy.client) == {
        "service": Level.OK,
        "version": Level.WARN,
        "clock": Level.OK,
        "token": Level.OK,
        "storage": Level.OK,
        "lost nodes": Level.WARN,
    }


def test_a_wrong_token_is_told_from_a_dead_service(healthy: StubService):
    healthy.on("GET /api/v1/diagnosis", refusal(401, "wrong_token", "this token is not known"))
    assert levels(healthy.client)["token"] is Level.FAIL
    healthy.on("GET /version", refusal(503, "unavailable", "down"))
    assert levels(healthy.client) == {"service": Level.FAIL}


def test_a_finding_says_why_it_matters_and_what_mends_it(healthy: StubService):
    result = CliRunner().invoke(app, ["doctor"], obj=Cli(connect=healthy.client))
    lines = " ".join(result.stdout.split())
    assert "b is LOST. Slots stand idle. Start it." in lines
    assert result.exit_code == 0, "a warning can wait"


def test_a_failure_is_the_exit_code(healthy: StubService):
    healthy.on("GET /api/v1/diagnosis", diagnosis(_LEADER, _WELL))
    result = CliRunner().invoke(app, ["doctor", "-o", "json"], obj=Cli(connect=healthy.client))
    assert result.exit_code == 1
    report = DoctorReport.model_validate_json(result.stdout)
    assert [(check.name, check.hint) for check in report.checks if check.level is Level.FAIL] == [
        ("scheduler", "Start one.")
    ]
    assert not any(check.hint or check.why for check in report.checks if check.level is Level.OK)


def test_the_machine_is_looked_at(tmp_path: Path):
    found = {check.name: check for check in machine_checks({"HEADWAY_HOME": str(tmp_path / "not" / "yet")})}
    assert set(found) == {
        "python",
        "torch",
        "postgres",
        "redis",
        "disk",
        "files",
        "open files",
        "secrets",
        "bounds of jobs",
    }
    assert found["postgres"].found.endswith("bin")
    assert str(tmp_path) in found["disk"].found
    assert disk_check(tmp_path / "deeper").hint
    assert files_check(tmp_path).level is Level.OK


def test_tokens_that_others_may_read_are_a_failure(tmp_path: Path):
    (tmp_path / "admin-token").write_text("secret")
    (tmp_path / "admin-token").chmod(0o600)
    assert secrets_check(tmp_path).level is Level.OK
    (tmp_path / "join-token").write_text("secret")
    (tmp_path / "join-token").chmod(0o640)
    check = secrets_check(tmp_path)
    assert check.level is Level.FAIL
    assert check.hint == f"chmod 600 {tmp_path / 'join-token'}"


@pytest.mark.parametrize(
    ("limit", "level"), [(256, Level.WARN), (65536, Level.OK), (resource.RLIM_INFINITY, Level.OK)]
)
def test_few_open_files(limit: int, level: Level):
    assert open_files_check(limit).level is level


@pytest.mark.parametrize(
    ("controllers", "level", "said"),
    [
        (
            "cpuset cpu io memory pids",
            Level.OK,
            "can enforce memory_per_slot, cpus_per_slot, the number of processes",
        ),
        ("cpu io", Level.WARN, "cannot enforce memory_per_slot, the number of processes"),
        (None, Level.WARN, "cannot enforce memory_per_slot, cpus_per_slot, the number of processes"),
    ],
)
def test_which_bounds_of_jobs_hold_here(tmp_path: Path, controllers: str | None, level: Level, said: str):
    file = tmp_path / "cgroup.controllers"
    if controllers is not None:
        file.write_text(controllers)
    check = bounds_check(file)
    assert check.level is level
    assert said in check.found


def test_redis_is_looked_for_from_here():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        assert redis_check(place).level is Level.OK
    gone = redis_check(place)
    assert gone.level is Level.WARN
    assert place in gone.found
    assert "HEADWAY_AGENT_REDIS_URL" in gone.hint
