"""`headway ranks`, and `headway cancel --wait`, which waits for the end of the ranks."""

from __future__ import annotations

import pytest

from headway.contract.views.jobs import JobState, JobView, Page
from headway.contract.views.ranks import RankPart, RankView
from tests.unit.headway.cli.test_verbs import run
from tests.unit.headway.stub import StubService, job_view, ok, page

RANKS = [
    RankView(rank=0, member="1.0", node="alpha", slot=3, pid=4001, part=RankPart.TRAINS),
    RankView(rank=1, member="2.1", node="beta", slot=0, pid=None, part=RankPart.JOINS),
]


@pytest.fixture
def service() -> StubService:
    return StubService()


def test_ranks_as_json_are_the_contract(service: StubService):
    service.on("GET /api/v1/jobs/j1/ranks", page(*RANKS))
    shown = run(service, "ranks", "j1", "-o", "json").stdout
    assert Page[RankView].model_validate_json(shown).items == RANKS


def test_ranks_are_listed_with_node_slot_and_process_id(service: StubService):
    service.on("GET /api/v1/jobs/digits/ranks", page(*RANKS))
    _, *rows = run(service, "ranks", "digits").stdout.splitlines()
    assert [row.split() for row in rows] == [
        ["0", "alpha", "3", "4001", "1.0", "trains"],
        ["1", "beta", "0", "-", "2.1", "joins"],
    ]


def test_a_job_without_processes_has_no_ranks(service: StubService):
    service.on("GET /api/v1/jobs/digits/ranks", page())
    assert run(service, "ranks", "digits").stdout.startswith("No ranks")


@pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.SUCCEEDED])
def test_cancel_wait_returns_once_the_job_has_ended(service: StubService, end: JobState):
    service.on("POST /api/v1/jobs/digits/cancel", ok(job_view(JobState.CANCELLING), 202))
    service.on("GET /api/v1/jobs/j1", ok(job_view(JobState.CANCELLING)), ok(job_view(end)))
    result = run(service, "cancel", "--wait", "digits", "-o", "json")
    assert result.exit_code == 0
    assert JobView.model_validate_json(result.stdout).state is end


def test_cancel_wait_of_a_waiting_job_asks_nothing_more(service: StubService):
    service.on("POST /api/v1/jobs/digits/cancel", ok(job_view(JobState.CANCELLED), 202))
    result = run(service, "cancel", "--wait", "digits")
    assert (result.exit_code, "has ended" in result.stdout) == (0, True)
