from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.cli.render import decisions as render
from headway.cli.render.jobs import usd
from headway.contract.values.markets import Market
from headway.contract.views.decisions import (
    ClusterView,
    ExplanationView,
    Outlook,
    PolicyParameter,
    PolicyView,
    RoundChange,
    RoundView,
    RowPrice,
)
from headway.contract.views.forecasts import (
    Confidence,
    ConfigurationForecast,
    DeadlineOutlook,
    DeadlineVerdict,
    ForecastView,
    Mark,
    PlanView,
    PredictionScore,
    Work,
    WorkSource,
)
from headway.contract.views.jobs import JobState, Reason, SizeOption
from tests.unit.headway.cli.verbs.jobs.test_jobs import text
from tests.unit.headway.stub import NOW, StubService, ok, page, refusal

UNSCORED = PredictionScore(count=0, median_ratio=None, median_error=None, p90_error=None, coverage=None)


def run(service: StubService, *arguments: str) -> Result:
    surroundings = Cli(connect=service.client, now=lambda: NOW)
    return CliRunner().invoke(app, arguments, obj=surroundings, catch_exceptions=False)


def option(slots: int = 4, utility: float | None = 0.5, note: str = "") -> SizeOption:
    return SizeOption(
        device_kind="cpu",
        slots=slots,
        goodput_samples_per_s=None,
        speedup=3.2,
        measured=False,
        utility=utility,
        note=note,
        nodes=1,
        market=Market.ON_DEMAND,
        anchor=0,
        usd_per_h=0.0,
    )


def explained(**changes: Any) -> ExplanationView:
    fields: dict[str, Any] = {
        "job_id": "j1",
        "name": "digits",
        "state": JobState.RUNNING,
        "action": "grow",
        "reason": Reason.BETTER_ALLOCATION,
        "message": "4 slots are 3.2 times as fast",
        "round_id": "r9",
        "decided_at": NOW - timedelta(seconds=5),
        "options": [option(note="chosen")],
        "policy": "goodput",
        "unit": "speedups",
    }
    return ExplanationView(**(fields | changes))


def configuration(slots: int = 1, **changes: Any) -> ConfigurationForecast:
    fields: dict[str, Any] = {
        "device_kind": "a100",
        "slots": slots,
        "nodes": 1,
        "goodput": 100.0 * slots,
        "goodput_low": 90.0 * slots,
        "goodput_high": 110.0 * slots,
        "speedup": float(slots),
        "confidence": Confidence.HIGH,
        "global_batch": 256,
        "local_batch": 64,
        "accumulation": 1,
        "time_s": 3600.0 / slots,
        "time_p90_s": 4000.0 / slots,
        "cost_usd": 2.0,
        "cost_p90_usd": 2.5,
        "usd_per_h": 2.0 * slots,
    }
    return ConfigurationForecast(**(fields | changes))


KNOWN = Work(samples=360_000, samples_p90=360_000, source=WorkSource.SCRIPT, reason="the script says so")
UNKNOWN = Work(samples=None, samples_p90=None, source=WorkSource.UNKNOWN, reason="nobody says so")


def forecast_of(*configurations: ConfigurationForecast, **changes: Any) -> ForecastView:
    fields: dict[str, Any] = {"job_id": "j1", "name": "digits", "at": NOW, "work": KNOWN, "score": UNSCORED}
    return ForecastView(**(fields | changes), configurations=list(configurations), predictions=[])


def plan_of(*configurations: ConfigurationForecast, **changes: Any) -> PlanView:
    fields: dict[str, Any] = {"name": "digits", "at": NOW, "job_class": "default/digits", "work": UNKNOWN}
    return PlanView(**({"warnings": []} | fields | changes), configurations=list(configurations))


def round_of(**changes: Any) -> RoundView:
    change = RoundChange.model_validate(
        {
            "job_id": "j1",
            "job_name": "digits",
            "action": "start",
            "from": 0,
            "to": 2,
            "reason": "ALLOCATED",
            "message": "there [is] room",
        }
    )
    fields: dict[str, Any] = {
        "id": "r9",
        "at": NOW - timedelta(seconds=5),
        "took_s": 0.0123,
        "policy": "budget",
        "parameters": {"usd_per_h": 12.0, "limits": [1.0, 2.5]},
        "inputs_digest": "abc",
        "status": "within_gap",
        "objective": 3.5,
        "bound": 3.507,
        "gap": 0.002,
        "unit": "speedups",
        "prices": [RowPrice(name="slots/a100", capacity=8, used=8, price=0.25)],
        "times": {"tables_s": 0.001, "solve_s": 0.01},
        "jobs": 7,
        "changes": [change],
    }
    return RoundView(**(fields | changes))


def cluster_of(**changes: Any) -> ClusterView:
    limits = PolicyParameter(name="usd_per_h", default=0.0, meaning="Dollars.", interval="at least 0")
    policies = [
        PolicyView(name="goodput", summary="Short.", parameters=[]),
        PolicyView(name="budget", summary="Cheap.", parameters=[limits]),
    ]
    fields: dict[str, Any] = {"nodes": {}, "kinds": [], "jobs": {}, "usd_per_h": 0.0, "policies": policies}
    return ClusterView(**({"policy": "goodput", "parameters": {}} | fields | changes))


def rows(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines()]


def test_the_explanation_lists_the_sizes():
    shown = text(render.explain_page(explained(), NOW))
    assert "grow: 4 slots are 3.2 times as fast" in shown
    assert "decided 5s ago, round r9, reason BETTER_ALLOCATION, policy goodput" in shown
    assert ["4", "cpu", "1", "-", "3.20", "predicted", "0.500", "chosen"] in rows(shown)
    partial = option(note="current").model_copy(update={"depth": 0.75})
    assert "current; mean depth 75%" in text(render.explain_page(explained(options=[partial]), NOW))
    assert "-  NO" not in text(render.explain_page(explained(options=[option(utility=None)]), NOW))
    undecided = explained(decided_at=None, options=[])
    assert "No round has decided about this job yet" in text(render.explain_page(undecided, NOW))


def test_the_explanation_says_what_more_would_be_worth():
    price = RowPrice(name="slots/cpu", capacity=8, used=8, price=0.1)
    slot = Outlook(
        row="slots/cpu",
        device_kind="cpu",
        slots=2,
        goodput_samples_per_s=4493,
        speedup=1.87,
        gain=0.3,
        price=0.1,
    )
    dollar = slot.model_copy(update={"row": "usd_per_h", "gain": None})
    shown = text(
        render.explain_page(
            explained(binding=[price], outlook=[slot, dollar], options=[option(1, note="current")]), NOW
        )
    )
    assert "what limits it: slots of cpu (8 of 8 taken, price 0.1)" in shown
    assert (
        "with one more slot of cpu it could have 2 cpu: 1.87 times as fast as now, goodput 4,493 samples/s; worth 0.3 to it"
        " and 0.1 to others, in speedups"
    ) in shown
    assert "with one more dollar an hour it could have 2 cpu" in shown
    ended = explained(state=JobState.SUCCEEDED, outlook=[slot])
    assert "one more slot" not in text(render.explain_page(ended, NOW))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("slots/a100", "slots of a100"),
        ("packing/a100/8", "room for 8 a100 together"),
        ("quota/team", "quota of team"),
        ("usd_per_h", "dollars an hour"),
        ("of/another/kind/of/row", "of/another/kind/of/row"),
    ],
)
def test_limits_are_said_in_words(name: str, said: str):
    assert render.row_name(name) == said


def test_a_forecast_shows_every_size_and_marks_the_present_one():
    fast = configuration(4, why_not_now="only 2 a100 slots are free", marks=[Mark.FASTEST])
    score = PredictionScore(count=9, median_ratio=1.02, median_error=0.05, p90_error=0.12, coverage=0.8)
    shown = text(
        render.forecast_page(forecast_of(configuration(marks=[Mark.PRESENT, Mark.KNEE]), fast, score=score))
    )
    assert "digits  360,000 samples to go: the script says so" in shown
    row = "1 a100 1 256 100 90-110 1.00 1h00m 1h06m $2.00 $2.50 high present; knee"
    assert row.split() in rows(shown)
    assert " a100: only 2 a100 slots are free" in shown
    assert (
        "9 predictions checked: in the median 1.02 times what was measured, 9 of 10 within 12%, 80% inside"
        in shown
    )


def test_what_is_not_known_is_not_shown_as_a_number():
    unknown = dict.fromkeys(("goodput", "goodput_low", "goodput_high", "time_s", "time_p90_s"))
    unknown |= dict.fromkeys(("cost_usd", "cost_p90_usd"))
    one = configuration(2, **unknown, usd_per_h=0.0, confidence=Confidence.LOW)
    shown = text(render.forecast_page(forecast_of(one, work=UNKNOWN)))
    assert "its end is unknown: nobody says so" in shown
    assert ["2", "a100", "1", "-", "-", "-", "2.00", "-", "-", "low"] in rows(shown)
    assert "COST" not in shown
    assert "no prediction for the job has been checked yet" in shown
    assert text(render.forecast_page(forecast_of(work=KNOWN))).count("\n") == 2


def test_work_that_is_only_estimated_has_a_bound():
    work = KNOWN.model_copy(update={"samples_p90": 500_000})
    assert "with 90 % at most 500,000" in text(render.forecast_page(forecast_of(work=work)))


def test_a_plan_names_the_smallest_the_knee_and_the_fastest():
    marked = configuration(1, marks=[Mark.SMALLEST, Mark.KNEE]), configuration(4, marks=[Mark.FASTEST])
    shown = text(render.plan_page(plan_of(*marked, warnings=["nothing was measured"])))
    assert "note: nothing was measured" in shown
    assert "the smallest: 1 a100, 1.00 times one slot, about 1h00m, $2.00" in shown
    assert "the best trade of time and cost: 1 a100" in shown
    assert "the fastest: 4 a100, 4.00 times one slot, about 15m00s" in shown
    assert "the smallest" not in text(render.plan_page(plan_of()))


@pytest.mark.parametrize(
    ("amount", "said"),
    [(None, "-"), (0.0, "$0.00"), (0.00123, "$0.0012"), (0.0153, "$0.015"), (1234.567, "$1,234.57")],
)
def test_dollars(amount: float | None, said: str):
    assert usd(amount) == said


def test_a_round_shows_bound_prices_times_and_changes():
    shown = text(render.round_page(round_of(), NOW))
    for expected in (
        "round r9  5s ago",
        "budget (usd_per_h=12, limits=1,2.5)",
        "7, of which 1 changed",
        "3.5 of at most 3.507 speedups",
        "0.20%, within_gap",
        "tables 1.0 ms, solve 10.0 ms",
        "there [is] room",
    ):
        assert expected in shown
    assert ["slots", "of", "a100", "8", "8", "0.25"] in rows(shown)
    assert rows(shown)[-1][:4] == ["digits", "start", "0", "2"]


def test_rounds_are_listed(service: StubService):
    many = round_of(changes=[*round_of().changes] * 5)
    service.on("GET /api/v1/rounds", page(round_of(changes=[], gap=0.0), many))
    result = run(service, "rounds")
    assert ["r9", "5s", "budget", "7", "0", "0", "12", "ms", "nothing", "changed"] in rows(result.stdout)
    assert "start digits 0>2, 2 more" in result.stdout
    printed = json.loads(run(service, "rounds", "-o", "json").stdout)
    assert printed["items"][1]["changes"][0]["from"] == 0


def test_one_round_is_shown(service: StubService):
    service.on("GET /api/v1/rounds/latest", ok(round_of()))
    assert "round r9" in run(service, "rounds", "latest").stdout
    assert json.loads(run(service, "rounds", "latest", "-o", "json").stdout)["gap"] == 0.002
    service.on("GET /api/v1/rounds/r1", refusal(404, "not_found", "no round 'r1' is kept"))
    failed = run(service, "rounds", "r1")
    assert (failed.exit_code, failed.stderr.splitlines()[0]) == (1, "no round 'r1' is kept")


def test_without_rounds_it_says_when_there_will_be_one(service: StubService):
    service.on("GET /api/v1/rounds", page())
    assert "No rounds yet." in run(service, "rounds").stdout


def test_a_plan_is_asked_for_and_nothing_is_submitted(service: StubService, tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nrun: python digits.py\nworkdir: missing\n")
    service.on("POST /api/v1/plans", ok(plan_of(configuration(marks=[Mark.KNEE]))))
    result = run(service, "plan", str(file), "--set", "elastic.max=3")
    assert result.exit_code == 0
    assert "the best trade of time and cost" in result.stdout
    assert service.body("POST /api/v1/plans")["elastic"] == {"max": 3}
    assert len(service.requests) == 1
    assert json.loads(run(service, "plan", str(file), "-o", "json").stdout)["job_class"] == "default/digits"


def test_a_forecast_and_an_explanation_are_asked_for(service: StubService):
    service.on("GET /api/v1/jobs/digits/forecast", ok(forecast_of(configuration())))
    service.on("GET /api/v1/jobs/digits/explain", ok(explained()))
    assert "360,000 samples to go" in run(service, "forecast", "digits").stdout
    assert json.loads(run(service, "forecast", "digits", "-o", "json").stdout)["name"] == "digits"
    assert "3.2 times as fast" in run(service, "explain", "digits").stdout


def test_the_policy_is_shown_with_all_that_there_are(service: StubService):
    service.on("GET /api/v1/cluster", ok(cluster_of(policy="budget", parameters={"usd_per_h": 12.0})))
    shown = run(service, "policy").stdout
    assert "policy budget  usd_per_h=12" in shown
    assert ["goodput", "Short.", "none"] in rows(shown)
    assert ["budget", "Cheap.", "usd_per_h=0"] in rows(shown)


def test_a_policy_is_chosen_with_parameters(service: StubService):
    service.on("PUT /api/v1/cluster", ok(cluster_of(policy="budget", parameters={"usd_per_h": 12.0})))
    result = run(
        service, "policy", "budget", "--set", "usd_per_h=12", "--set", "limits=1,2.5", "--set", "one=3,"
    )
    assert service.body("PUT /api/v1/cluster") == {
        "policy": "budget",
        "parameters": {"usd_per_h": 12.0, "limits": [1.0, 2.5], "one": [3.0]},
    }
    assert "The cluster follows budget from the next round on." in result.stdout
    assert ["usd_per_h", "0", "at", "least", "0", "Dollars."] in rows(result.stdout)


def test_a_parameter_alone_keeps_the_policy_and_its_others(service: StubService):
    service.on("GET /api/v1/cluster", ok(cluster_of(policy="budget", parameters={"a": 1.0, "b": 2.0})))
    service.on("PUT /api/v1/cluster", ok(cluster_of(policy="budget")))
    run(service, "policy", "--set", "b=3")
    assert service.body("PUT /api/v1/cluster") == {"policy": "budget", "parameters": {"a": 1.0, "b": 3.0}}


@pytest.mark.parametrize(
    "wrong", ["usd_per_h=nan", "usd_per_h=1e400", "usd_per_h", "=1", "a=", "a=much", "a=,"]
)
def test_a_parameter_that_is_none_is_refused_before_anything_is_sent(service: StubService, wrong: str):
    result = run(service, "policy", "budget", "--set", wrong)
    assert (result.exit_code, service.requests) == (1, [])
    assert "not of the form key=number" in result.stderr


@pytest.mark.parametrize("price", ["a100", "a100=cheap", "a100=-1", "a100=1,a100=2"])
def test_up_refuses_a_price_that_is_none_before_it_starts_anything(service: StubService, price: str):
    result = run(service, "up", "--price", price)
    assert result.exit_code == 2
    assert "--price" in result.stderr


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.mark.parametrize("verb", ["plan", "forecast", "explain", "rounds", "policy"])
def test_every_verb_has_an_example(service: StubService, verb: str):
    assert f"headway {verb}" in run(service, verb, "--help").stdout


def test_a_plan_says_whether_its_deadline_is_feasible() -> None:
    outlook = DeadlineOutlook(verdict=DeadlineVerdict.FEASIBLE_FROM, deadline=NOW, message="from noon on")
    plan = plan_of().model_copy(update={"deadline": outlook})
    assert "deadline feasible from: from noon on" in text(render.plan_page(plan))
    assert "deadline" not in text(render.plan_page(plan_of()))
