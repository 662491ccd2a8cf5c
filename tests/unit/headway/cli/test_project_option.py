"""`--project` and `HEADWAY_PROJECT`: which jobs a verb is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.views.jobs import JobState
from tests.unit.headway.stub import NOW, StubService, job_view, ok, page


@pytest.fixture
def service() -> StubService:
    made = StubService()
    made.on("GET /api/v1/jobs", page(job_view()))
    made.on("GET /api/v1/jobs/digits", ok(job_view()))
    made.on("GET /api/v1/jobs/digits/logs", page())
    made.on("POST /api/v1/jobs/digits/cancel", ok(job_view(), 202))
    made.on("POST /api/v1/jobs", ok(job_view(JobState.PENDING), 201))
    return made


def run(service: StubService, *arguments: str, env: dict[str, str] | None = None) -> None:
    surroundings = Cli(connect=service.client, now=lambda: NOW)
    result = CliRunner().invoke(app, arguments, obj=surroundings, catch_exceptions=False, env=env or {})
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "route"),
    [
        (("ps",), "GET /api/v1/jobs"),
        (("describe", "digits", "-o", "json"), "GET /api/v1/jobs/digits"),
        (("logs", "digits", "--tail", "3"), "GET /api/v1/jobs/digits/logs"),
        (("cancel", "digits"), "POST /api/v1/jobs/digits/cancel"),
    ],
)
def test_a_verb_asks_about_one_project_or_all(
    service: StubService, arguments: tuple[str, ...], route: str
) -> None:
    run(service, *arguments)
    run(service, *arguments, "-p", "vision")
    run(service, *arguments, env={"HEADWAY_PROJECT": "speech"})
    run(service, *arguments, "--project", "vision", env={"HEADWAY_PROJECT": "speech"})
    asked = [request.url.params.get("project") for request in service.sent(route)]
    assert asked == [None, "vision", "speech", "vision"]
    if "--tail" in arguments:
        assert service.sent(route)[-1].url.params["tail"] == "3", "other conditions stay"


def test_a_job_is_submitted_to_the_project_that_its_file_names_or_else_to_this_one(
    service: StubService, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    for text, project in (
        ("name: digits\nrun: x\n", "vision"),
        ("name: digits\nrun: x\nproject: speech\n", "speech"),
    ):
        file.write_text(text)
        run(service, "submit", str(file), "--project", "vision")
        assert service.body("POST /api/v1/jobs")["project"] == project
    file.write_text("name: digits\nrun: x\n")
    run(service, "submit", str(file))
    assert "project" not in service.body("POST /api/v1/jobs")
