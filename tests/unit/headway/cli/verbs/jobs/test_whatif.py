from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headway.cli.render import whatif as render_whatif
from headway.contract.views.simulations import (
    JobComparison,
    JobOutcome,
    Outcome,
    SimulationRequest,
    SimulationResult,
    SimulationStatus,
    SimulationView,
)
from tests.unit.headway.cli.verbs.jobs.test_decisions import run
from tests.unit.headway.cli.verbs.jobs.test_jobs import text
from tests.unit.headway.stub import NOW, StubService, ok, refusal

ASK = "POST /api/v1/simulations"
GET = "GET /api/v1/simulations/s1"


def outcome(label: str, avg_s: float, *differences: str) -> Outcome:
    return Outcome(
        label=label,
        policy="goodput",
        jobs=2,
        unfinished=0,
        avg_s=avg_s,
        median_s=avg_s,
        p90_s=avg_s,
        last_s=2 * avg_s,
        wait_s=5,
        usd=1.5,
        slot_h=0.5,
        utilisation=0.75,
        changes_per_job=1.5,
        differences=list(differences),
    )


def job(end_s: float | None, *, low_s: float | None = None, high_s: float | None = None) -> JobOutcome:
    return JobOutcome(
        start_s=0,
        end_s=end_s,
        end_low_s=end_s if low_s is None else low_s,
        end_high_s=end_s if high_s is None else high_s,
        usd=0.75,
        slot_h=0.25,
        changes=1,
    )


def result(jobs: list[JobComparison] | None = None) -> SimulationResult:
    rows = [
        JobComparison(job_id="j1", name="digits", outcomes=[job(600, low_s=540, high_s=660), job(300)]),
        JobComparison(job_id="j2", name="[new]", outcomes=[None, job(None)]),
    ]
    outcomes = [outcome("as it is", 600), outcome("srtf", 300, "jobs end 50% sooner")]
    return SimulationResult(
        at=NOW,
        seeds=3,
        horizon_s=86_400,
        outcomes=outcomes,
        jobs=rows if jobs is None else jobs,
        warnings=["odd is paused"],
    )


def view(status: SimulationStatus = SimulationStatus.QUEUED, **fields: Any) -> SimulationView:
    return SimulationView(
        **{
            "id": "s1",
            "status": status,
            "progress": 0.5,
            "message": "waits for its turn",
            "created_at": NOW,
            "started_at": NOW,
            "finished_at": NOW + timedelta(seconds=1) if status is SimulationStatus.DONE else None,
            "request": SimulationRequest(),
            **fields,
        }
    )


@pytest.fixture
def service() -> StubService:
    stub = StubService()
    stub.on(ASK, ok(view(), 202))
    done = view(SimulationStatus.DONE, progress=1.0, result=result())
    stub.on(GET, ok(view(SimulationStatus.RUNNING)), ok(done))
    return stub


def test_the_answer_is_waited_for_and_shown(service: StubService) -> None:
    shown = run(service, "whatif", "--policy", "srtf")
    assert shown.exit_code == 0, shown.output
    assert "jobs end 50% sooner" in shown.output
    assert len(service.sent(GET)) == 2
    assert service.sent(ASK)[0].headers["Idempotency-Key"]
    assert service.body(ASK)["changes"] == [{"change": "policy", "policy": "srtf", "parameters": {}}]


def test_every_option_becomes_a_change(service: StubService, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: new\nrun: python new.py\n")
    options = (
        ("--add-nodes", "a100=2x8"),
        ("--add-nodes", "cpu=1"),
        ("--remove-nodes", "t4=3"),
        ("--remove-node", "host-3"),
        ("--price", "a100=2.5"),
        ("--drop-job", "digits"),
        ("--add-job", f"{file}@30m"),
        ("--budget", "12"),
        ("--seeds", "5"),
        ("--horizon", "2d"),
    )
    shown = run(service, "whatif", "--no-wait", *(part for option in options for part in option))
    assert shown.exit_code == 0, shown.output
    assert "Simulation s1 queued" in shown.output
    body = service.body(ASK)
    assert (body["seeds"], body["horizon_s"]) == (5, 172_800.0)
    *plain, added, budget = body["changes"]
    assert plain == [
        {"change": "add_nodes", "device_kind": "a100", "nodes": 2, "slots": 8},
        {"change": "add_nodes", "device_kind": "cpu", "nodes": 1, "slots": None},
        {"change": "remove_nodes", "device_kind": "t4", "nodes": 3},
        {"change": "kill_node", "node": "host-3"},
        {"change": "price", "device_kind": "a100", "usd_per_slot_h": 2.5},
        {"change": "drop_job", "job": "digits"},
    ]
    assert (added["change"], added["spec"]["name"], added["after_s"]) == ("add_job", "new", 1800.0)
    assert budget == {"change": "budget", "usd_per_h": 12.0}
    # The service reads what was sent as what was meant.
    assert SimulationRequest.model_validate(body).changes[-1].change == "budget"


def test_several_policies_are_compared_the_one_for_a_budget_among_them(service: StubService) -> None:
    run(service, "whatif", "--policy", "goodput:horizon_s=60,p=0.5", "--policy", "fifo", "--budget", "3")
    assert service.body(ASK)["changes"] == []
    assert service.body(ASK)["policies"] == [
        {"policy": "goodput", "parameters": {"horizon_s": 60.0, "p": 0.5}},
        {"policy": "fifo", "parameters": {}},
        {"policy": "budget", "parameters": {"usd_per_h": 3.0}},
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no change was given"),
        (("--add-nodes", "a100"), "--add-nodes a100: not of the form a100=2x8"),
        (("--add-nodes", "a100=0x8"), "--add-nodes: nodes: Input should be greater than or equal to 1"),
        (("--add-nodes", "A B=1"), "--add-nodes: device_kind: String should match"),
        (("--remove-nodes", "a100=1x8"), "only whole nodes"),
        (("--price", "a100=cheap"), "'cheap' is not a number"),
        (("--policy", "budget:usd_per_h=much"), "'much' is not a number"),
        (("--budget", "-1"), "--budget: usd_per_h: Input should be greater"),
        (("--budget", "1", "--horizon", "soon"), "--horizon soon"),
        (("--budget", "1", "--horizon", "1s"), "horizon_s: Input should be greater than or equal to 60"),
        (("--add-job", "nowhere.yaml"), "nowhere.yaml: No such file"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_asked(
    service: StubService, arguments: tuple[str, ...], says: str
) -> None:
    shown = run(service, "whatif", *arguments)
    assert shown.exit_code == 1
    assert says in shown.output
    assert service.requests == []


def test_a_job_that_comes_after_the_horizon_is_refused(service: StubService, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: new\nrun: python new.py\n")
    shown = run(service, "whatif", "--add-job", f"{file}@3d", "--horizon", "2d")
    assert shown.exit_code == 1
    assert "new would come after the horizon" in shown.output


def test_a_simulation_that_failed_is_an_error(service: StubService) -> None:
    service.on(GET, ok(view(SimulationStatus.FAILED, message="it took longer than 900 s")))
    shown = run(service, "whatif", "--policy", "fifo")
    assert shown.exit_code == 1
    assert "Simulation s1 failed: it took longer than 900 s" in shown.output


def test_what_the_service_refuses_is_said(service: StubService) -> None:
    service.on(ASK, refusal(422, "invalid_field", "no node has the id or name 'x'"))
    shown = run(service, "whatif", "--remove-node", "x")
    assert shown.exit_code == 1
    assert "no node has the id or name 'x'" in shown.output


def test_programs_get_the_whole_view(service: StubService) -> None:
    shown = run(service, "whatif", "--policy", "srtf", "-o", "json")
    assert shown.exit_code == 0
    parsed = json.loads(shown.stdout)
    assert SimulationView.model_validate(parsed).result == result()


def test_the_page_has_cases_and_jobs_side_by_side() -> None:
    lines = text(render_whatif.result_page(result())).splitlines()
    (row,) = [line for line in lines if line.startswith("digits")]
    assert row.split() == ["digits", "10m00s", "(9m00s-11m00s)", "5m00s", "$0.75", "$0.75"]
    (added,) = [line for line in lines if line.startswith("[new]")]
    assert added.split() == ["[new]", "-", "not", "ended", "-", "$0.75"]
    (changed,) = [line for line in lines if line.startswith("changed, srtf")]
    assert changed.split()[2:6] == ["2", "5m00s", "5m00s", "5m00s"]
    assert "note: odd is paused" in lines


def test_of_many_jobs_some_are_listed() -> None:
    many = [JobComparison(job_id=f"j{n}", name=f"job-{n}", outcomes=[job(1), job(1)]) for n in range(40)]
    shown = text(render_whatif.result_page(result(many)))
    assert "job-29" in shown
    assert "job-30" not in shown
    assert "and 10 more jobs" in shown
