"""The verb `headway sweep`, and `headway submit` of a file with `sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from headway.cli.waiting import EXIT_CODES
from headway.contract.spec_sweep import Sweep
from headway.contract.views.jobs import EventView, JobState, Page, Reason
from headway.contract.views.sweeps import SweepSummary, SweepView, TrialView
from tests.unit.headway.cli.test_verbs import run
from tests.unit.headway.stub import NOW, StubService, job_view, ok

FILE = "name: gpt\nrun: python t.py --lr $HEADWAY_PARAM_LR\nsweep: {parameters: {lr: [0.1, 0.01]}, metric: loss}\n"


def trial(number: int, state: JobState, value: float | None) -> TrialView:
    return TrialView(
        number=number,
        job_id=f"j{number}",
        name=f"gpt-{number}",
        state=state,
        reason=Reason.SUBMITTED,
        message="completed; 3 epochs",
        parameters={"lr": 10.0**-number},
        value=value,
    )


def sweep_view(*trials: TrialView, best: int | None = None) -> SweepView:
    return SweepView(
        id="s1",
        name="gpt",
        project="default",
        owner="ada",
        submitted_at=NOW,
        sweep=Sweep(parameters={"lr": (0.1, 0.01)}, metric="loss"),
        states={one.state: sum(1 for other in trials if other.state is one.state) for one in trials},
        best=best,
        trials=list(trials),
    )


PENDING = sweep_view(trial(1, JobState.PENDING, None), trial(2, JobState.PENDING, None))
DONE = sweep_view(trial(1, JobState.SUCCEEDED, 0.5), trial(2, JobState.FAILED, 0.25), best=2)


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_submit_of_a_file_with_sweep_posts_one_sweep(service: StubService, file: str) -> None:
    service.on("POST /api/v1/sweeps", ok(PENDING, 201))
    result = run(service, "submit", file, "--set", "sweep.parameters.lr=[1, 2]", "--set", "priority=9")
    assert result.exit_code == 0, result.output
    sent = service.body("POST /api/v1/sweeps")
    assert (sent["sweep"]["parameters"], sent["priority"]) == ({"lr": [1, 2]}, 9)
    assert (
        "gpt is submitted with 2 trials, gpt-1 to gpt-2, id s1. Follow it: headway sweep gpt" in result.stdout
    )
    assert not service.sent("POST /api/v1/jobs")
    assert service.sent("POST /api/v1/sweeps")[0].headers["idempotency-key"]


def test_submit_waits_for_all_trials_and_exits_as_the_worst(service: StubService, file: str) -> None:
    service.on("POST /api/v1/sweeps", ok(PENDING, 201))
    service.on("GET /api/v1/sweeps/s1", ok(PENDING), ok(DONE))
    result = run(service, "submit", file, "--wait")
    assert result.exit_code == 100
    assert service.timer.slept == [2.0]
    assert "Best: gpt-2, loss 0.25" in result.stdout


def test_trials_that_ended_early_are_no_failure_of_the_submit(service: StubService, file: str) -> None:
    early = trial(1, JobState.CANCELLED, 2.0).model_copy(update={"reason": Reason.STOPPED_EARLY})
    cancelled = trial(1, JobState.CANCELLED, 2.0).model_copy(update={"reason": Reason.USER_REQUEST})
    for one, expected in ((early, 0), (cancelled, EXIT_CODES[JobState.CANCELLED])):
        service.on("POST /api/v1/sweeps", ok(PENDING, 201))
        service.on("GET /api/v1/sweeps/s1", ok(sweep_view(one, trial(2, JobState.SUCCEEDED, 0.5), best=2)))
        result = run(service, "submit", file, "--wait")
        assert result.exit_code == expected


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["plan"], "sweep: makes several jobs, and this takes one"),
        (["submit", "--from", "other"], "--from and sweep exclude each other"),
        (["submit", "--set", "sweep.trials=0"], "sweep.trials: must be at least 1"),
        (["submit", "--set", "sweep.search=bayes"], "sweep.search: must be 'grid' or 'random'"),
    ],
)
def test_wrong_use_of_a_sweep_is_refused_before_any_request(
    service: StubService, file: str, verb: list[str], said: str
) -> None:
    result = run(service, *verb, file)
    assert result.exit_code == 1
    assert said in result.output
    assert service.requests == []


def test_sweep_with_a_name_shows_its_trials_and_marks_the_best(service: StubService) -> None:
    service.on("GET /api/v1/sweeps/gpt", ok(DONE))
    result = run(service, "sweep", "gpt")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == "gpt: 2 trials, 1 SUCCEEDED, 1 FAILED. Best: gpt-2, loss 0.25."
    assert [line.split() for line in lines[1:4]] == [
        ["TRIAL", "STATE", "lr", "loss", "WHY"],
        ["1", "SUCCEEDED", "0.1", "0.5", "completed"],
        ["*", "2", "FAILED", "0.01", "0.25", "completed"],
    ]
    shown = run(service, "sweep", "show", "gpt", "-o", "json")
    assert json.loads(shown.stdout)["best"] == 2


def test_sweep_without_a_name_lists_sweeps(service: StubService) -> None:
    summary = SweepSummary.model_validate(DONE.model_dump(exclude={"best", "trials"}))
    service.on("GET /api/v1/sweeps", ok(Page[SweepSummary](items=[summary])))
    for words in (["sweep"], ["sweep", "list"]):
        result = run(service, *words)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[1].split() == [
            *("gpt", "default", "2", "grid", "loss", "(minimise)", "1", "SUCCEEDED,", "1", "FAILED")
        ]
    service.on("GET /api/v1/sweeps", ok(Page[SweepSummary](items=[])))
    assert "No sweeps" in run(service, "sweep").stdout


@pytest.mark.parametrize(
    ("words", "route", "body"),
    [
        (["cancel", "gpt", "--force"], "POST /api/v1/sweeps/gpt/cancel", {"force": True}),
        (["pause", "gpt"], "POST /api/v1/sweeps/gpt/pause", None),
        (["resume", "gpt"], "POST /api/v1/sweeps/gpt/resume", None),
        (["priority", "gpt", "80"], "PATCH /api/v1/sweeps/gpt", {"priority": 80}),
    ],
)
def test_group_verb_changes_all_trials(
    service: StubService, words: list[str], route: str, body: dict[str, object] | None
) -> None:
    service.on(route, ok(PENDING))
    result = run(service, "sweep", *words)
    assert result.exit_code == 0, result.output
    (sent,) = service.sent(route)
    assert (json.loads(sent.content) if sent.content else None) == body
    assert "Its trials: 2 PENDING" in result.stdout


def test_csv_is_printed_as_the_service_writes_it(service: StubService) -> None:
    text = "trial,job\r\n1,gpt-1\r\n"
    service.on("GET /api/v1/sweeps/gpt/results", lambda: httpx.Response(200, text=text))
    result = run(service, "sweep", "gpt", "--csv")
    assert result.stdout_bytes == text.encode()
    refused = run(service, "sweep", "gpt", "--csv", "-o", "json")
    assert refused.exit_code == 1


def test_describe_shows_the_parameters_of_a_trial(service: StubService) -> None:
    job = job_view(JobState.PENDING)
    spec = job.spec.model_copy(update={"parameters": {"lr": 0.1, "optimiser": "adam"}})
    service.on("GET /api/v1/jobs/digits", ok(job.model_copy(update={"spec": spec})))
    service.on(f"GET /api/v1/jobs/{job.id}/events", ok(Page[EventView](items=[])))
    shown = run(service, "describe", "digits").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("parameters")]
    assert line.split() == ["parameters", "lr", "0.1", "optimiser", "adam"]
