"""`headway graph`: chains of jobs as a tree."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.spec_after import AfterEnd
from headway.contract.views.jobs import GraphEdge, GraphJob, GraphView, JobState
from tests.unit.headway.stub import NOW, StubService, ok, refusal

ROUTE = "GET /api/v1/graph"


@pytest.fixture
def stub() -> StubService:
    return StubService()


def run(stub: StubService, *argv: str) -> Result:
    cli = Cli(connect=stub.client, now=lambda: NOW)
    return CliRunner().invoke(app, ["graph", *argv], obj=cli, env={"COLUMNS": "160"})


def job(name: str, state: JobState | None = JobState.PENDING, present: str = "") -> GraphJob:
    return GraphJob(id=f"j-{name}", name=name, state=state, present=present)


def edge(name: str, after: str, on: AfterEnd = AfterEnd.SUCCEEDED) -> GraphEdge:
    return GraphEdge(job_id=f"j-{name}", after_id=f"j-{after}", on=on)


def test_jobs_stand_below_those_that_they_start_after(stub: StubService) -> None:
    view = GraphView(
        jobs=[
            job("prep", JobState.RUNNING, "2 slots"),
            job("train"),
            job("tidy"),
            job("report", present="waits for the success of train"),
        ],
        edges=[
            edge("train", "prep"),
            edge("tidy", "prep", AfterEnd.ENDED),
            edge("report", "train"),
            edge("report", "tidy"),
        ],
    )
    stub.on(ROUTE, ok(view))
    lines = [line.rstrip() for line in run(stub, "report", "--project", "vision").stdout.splitlines()]
    assert lines == [
        "prep  RUNNING  2 slots",
        "|- train  PENDING",
        "|  `- report  PENDING  waits for the success of train",
        "`- tidy (on: ended)  PENDING",
        "   `- report  PENDING  waits for the success of train",
    ]
    assert dict(stub.sent(ROUTE)[0].url.params) == {"job": "report", "project": "vision"}


def test_successors_of_a_repeated_job_are_shown_once(stub: StubService) -> None:
    view = GraphView(
        jobs=[job("a", None), job("b"), job("c"), job("d")],
        edges=[edge("c", "a"), edge("c", "b"), edge("d", "c")],
    )
    stub.on(ROUTE, ok(view))
    text = run(stub).stdout
    assert (text.count("d  PENDING"), text.count("see above"), "a  deleted" in text) == (1, 1, True), text


def test_no_chain_is_explained_and_json_is_the_view(stub: StubService) -> None:
    nothing = GraphView(jobs=[], edges=[])
    stub.on(ROUTE, ok(nothing))
    assert "`after`" in run(stub).stdout
    assert json.loads(run(stub, "-o", "json").stdout) == {"jobs": [], "edges": []}
    stub.on(ROUTE, refusal(404, "not_found", "no job has the id or name 'x'"))
    assert run(stub, "x").exit_code == 1
