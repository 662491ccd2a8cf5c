from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.doctor import Level, Report, disk_check, machine_checks, service_checks
from headway.cli.main import app
from headway.client import Client
from headway.contract.agents import NodeState
from tests.unit.cli.stub import StubService, node_view, ok, page, refusal


@pytest.fixture
def healthy() -> StubService:
    service = StubService()
    service.on("GET /version", ok({"version": "0.0.0"}))
    service.on("GET /readyz", ok({}))
    service.on("GET /livez", ok({}))
    service.on("GET /api/v1/nodes", page(node_view(), node_view(NodeState.LOST)))
    return service


def levels(connect: Callable[[], Client]) -> dict[str, Level]:
    return {check.name: check.level for check in service_checks(Cli(connect=connect))}


def test_a_service_is_looked_at_from_all_sides(healthy: StubService):
    assert levels(healthy.client) == {
        "service": Level.OK,
        "version": Level.WARN,
        "stores": Level.OK,
        "clock": Level.OK,
        "token": Level.OK,
        "nodes": Level.WARN,
    }


def test_a_wrong_token_is_told_from_a_dead_service(healthy: StubService):
    healthy.on("GET /api/v1/nodes", refusal(401, "wrong_token", "this token is not known"))
    assert levels(healthy.client)["token"] is Level.FAIL
    healthy.on("GET /version", refusal(503, "unavailable", "down"))
    assert levels(healthy.client) == {"service": Level.FAIL}


def test_stores_that_do_not_answer_are_a_failure(healthy: StubService):
    healthy.on("GET /readyz", refusal(503, "unavailable", "Postgres does not answer"))
    assert levels(healthy.client)["stores"] is Level.FAIL


def test_the_machine_is_looked_at(tmp_path: Path):
    found = {check.name: check for check in machine_checks({"HEADWAY_HOME": str(tmp_path / "not" / "yet")})}
    assert set(found) == {"python", "torch", "postgres", "redis", "disk"}
    assert found["postgres"].found.endswith("bin")
    assert str(tmp_path) in found["disk"].found
    assert disk_check(tmp_path / "deeper").hint


def test_a_failure_is_the_exit_code(healthy: StubService):
    healthy.on("GET /version", refusal(503, "unavailable", "down"))
    result = CliRunner().invoke(app, ["doctor", "-o", "json"], obj=Cli(connect=healthy.client))
    assert result.exit_code == 1
    report = Report.model_validate_json(result.stdout)
    assert [check.name for check in report.checks if check.level is Level.FAIL] == ["service"]
