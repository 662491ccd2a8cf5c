from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headway.cli.render.jobs import cost_text
from headway.contract.run_facts import JobCost
from headway.contract.spec import JobSpec
from headway.contract.spec_goal import Goal
from headway.contract.views.decisions import RowPrice
from headway.contract.views.jobs import JobState
from headway.contract.views.money import (
    BudgetKind,
    BudgetView,
    GroupBy,
    LeaseBill,
    Period,
    Scope,
    Usage,
    UsageGroup,
    UsageView,
)
from tests.unit.headway.cli.test_verbs import run
from tests.unit.headway.stub import NOW, StubService, job_view, ok, page, refusal


def budget(**fields: Any) -> BudgetView:
    return BudgetView(
        **{
            "name": "daily",
            "scope": Scope.PROJECT,
            "project": "vision",
            "kind": BudgetKind.PERIOD,
            "usd": 100.0,
            "period": Period.DAY,
            "hard": True,
            "version": 1,
            "created_at": NOW,
            "updated_at": NOW,
            "period_from": NOW,
            "period_to": NOW + timedelta(days=1),
            "spent_usd": 40.0,
            "remaining_usd": 60.0,
            "usd_per_h": 3.5,
            "average_usd_per_h": 4.0,
            "forecast_usd": 82.0,
            "exhausted_at": None,
            "exhausted": False,
            "over": False,
            "usd_price": RowPrice(name="budget/daily", capacity=1, used=1, price=0.25),
            "message": "$40.00 of $100.00 this day; about $82.00 expected by its end",
            **fields,
        }
    )


def figures(usd: float) -> dict[str, float]:
    rest = {name: 0.0 for name in Usage.model_fields if name not in {"usd", "useful_usd", "slot_h"}}
    return {"usd": usd, "useful_usd": usd / 2, "slot_h": usd, **rest, "idle_usd": usd / 2}


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.mark.parametrize("words", [("budget",), ("budget", "list")])
def test_budgets_are_shown_with_how_they_stand(service: StubService, words: tuple[str, ...]) -> None:
    service.on("GET /api/v1/budgets", page(budget()))
    shown = run(service, *words).stdout
    for part in ("vision", "a day", "hard", "$40.00", "$82.00", "0.25", "by its end"):
        assert part in shown


def test_no_budget_says_how_to_set_one(service: StubService) -> None:
    service.on("GET /api/v1/budgets", page())
    assert "headway budget set" in run(service, "budget").stdout


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["--per", "week", "--project", "vision", "--hard"], ("period", "week", "vision", True)),
        (["--hourly"], ("hourly_cap", None, None, False)),
        (["--long-run", "--soft"], ("long_run", None, None, False)),
    ],
)
def test_each_kind_of_budget_can_be_set(
    service: StubService, words: list[str], sent: tuple[object, ...]
) -> None:
    service.on("PUT /api/v1/budgets/daily", ok(budget()))
    result = run(service, "budget", "set", "daily", "--usd", "100", *words)
    assert result.exit_code == 0
    body = service.body("PUT /api/v1/budgets/daily")
    assert (body["kind"], body["period"], body["project"], body["hard"]) == sent


@pytest.mark.parametrize(
    "words",
    [
        ["--usd", "100"],
        ["--usd", "100", "--hourly", "--per", "day"],
        ["--usd", "-1", "--per", "day"],
        ["--usd", "nan", "--per", "day"],
        ["--usd", "inf", "--per", "day"],
        ["--usd", "5", "--long-run", "--hard"],
        ["--usd", "5", "--per", "day", "--project", "Not A Name"],
    ],
)
def test_a_budget_that_makes_no_sense_is_not_sent(service: StubService, words: list[str]) -> None:
    result = run(service, "budget", "set", "daily", *words)
    assert result.exit_code == (2 if {"nan", "inf"} & set(words) else 1), "no number is an error of usage"
    assert result.stderr
    assert service.requests == []


def test_a_refusal_is_shown(service: StubService) -> None:
    service.on("DELETE /api/v1/budgets/other", refusal(404, "not_found", "no budget has the name 'other'"))
    result = run(service, "budget", "rm", "other")
    assert result.exit_code == 1
    assert "no budget has the name" in result.stderr


def test_the_bill_says_what_is_not_in_it(service: StubService) -> None:
    view = UsageView(
        from_=NOW,
        to=NOW,
        accrued_to=NOW,
        group_by=GroupBy.JOB,
        total=Usage(**figures(12.5)),
        groups=[
            UsageGroup(key="j1", label="digits", **figures(10)),
            UsageGroup(key="", label="", **figures(2.5)),
        ],
        unpriced_kinds=["odd"],
    )
    service.on("GET /api/v1/usage", ok(view))
    shown = run(service, "usage", "--by", "job", "--since", "24h").stdout
    for part in ("digits", "none", "$12.50", "(50%)", "HEADWAY_PRICES", "odd"):
        assert part in shown
    (request,) = service.sent("GET /api/v1/usage")
    assert request.url.params["group_by"] == "job"
    assert request.url.params["from"] == (NOW - timedelta(days=1)).isoformat()


def test_without_any_price_the_bill_counts_slot_hours_and_shares(service: StubService) -> None:
    def hours(useful: float, lost: float) -> dict[str, float]:
        slot_h = useful + lost
        parts = {
            "useful_slot_h": useful,
            "unknown_slot_h": 0.0,
            "resize_slot_h": 0.0,
            "lost_slot_h": lost,
            "idle_slot_h": 0.0,
        }
        usd = dict.fromkeys(("usd", "useful_usd", "unknown_usd", "resize_usd", "lost_usd", "idle_usd"), 0.0)
        return {**usd, **parts, "slot_h": slot_h, "unpriced_slot_h": slot_h}

    view = UsageView(
        from_=NOW,
        to=NOW,
        accrued_to=NOW,
        group_by=GroupBy.JOB,
        total=Usage(**hours(8.0, 2.0)),
        groups=[
            UsageGroup(key="j1", label="digits", **hours(6.0, 0.0)),
            UsageGroup(key="j2", label="other", **hours(2.0, 2.0)),
        ],
        unpriced_kinds=["cpu"],
    )
    service.on("GET /api/v1/usage", ok(view))
    shown = run(service, "usage", "--by", "job").stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["digits", "6.00", "60%", "6.00", "(100%)", "0.00", "0.00", "0.00", "0.00"] in rows
    assert ["other", "4.00", "40%", "2.00", "(50%)", "0.00", "0.00", "2.00", "0.00"] in rows
    assert ["in", "all", "10.00", "100%", "8.00", "(80%)", "0.00", "0.00", "2.00", "0.00"] in rows
    assert "$" not in shown


def test_small_amounts_have_the_digits_of_the_total_and_add_up(service: StubService) -> None:
    view = UsageView.model_validate(
        {
            "from": NOW - timedelta(days=1),
            "to": NOW,
            "accrued_to": NOW,
            "group_by": GroupBy.JOB,
            "total": figures(0.00505),
            "groups": [
                {"key": "j1", "label": "digits", **figures(0.0047)},
                {"key": "", "label": "", **figures(0.00035)},
            ],
            "unpriced_kinds": [],
        }
    )
    service.on("GET /api/v1/usage", ok(view))
    shown = run(service, "usage", "--by", "job").stdout
    for part in ("$0.00470", "$0.00035", "$0.00505"):
        assert part in shown


@pytest.mark.parametrize("since", ["yesterday", "12-1", ""])
def test_a_time_that_is_none_is_refused(service: StubService, since: str) -> None:
    result = run(service, "usage", "--since", since)
    assert result.exit_code == 1
    assert "--since" in result.stderr


def test_leases_are_shown_as_billed_and_as_charged(service: StubService) -> None:
    bill = LeaseBill(
        machine_id="m1",
        instance_type="g4dn.xlarge",
        market="spot",
        billed_from=NOW,
        billed_to=None,
        paid_s=120.0,
        charged_s=120.0,
        usd=0.00123,
    )
    service.on("GET /api/v1/usage/machines", page(bill))
    shown = run(service, "usage", "--machines").stdout
    for part in ("m1", "g4dn.xlarge", "spot", "open", "$0.00123"):
        assert part in shown


def test_a_job_says_what_it_cost_and_what_is_to_come() -> None:
    spec = JobSpec(name="digits", run="x", goal=Goal(max_cost_usd=20, on_budget="pause"))
    cost = JobCost(
        usd=5,
        useful_usd=3,
        resize_usd=1.5,
        lost_usd=0.5,
        unknown_usd=0,
        unpriced=True,
        expected_usd=12,
        left_usd=15,
    )
    shown = cost_text(job_view(spec=spec, cost=cost))
    for part in (
        "$5.00 so far",
        "$1.50 for changes",
        "$0.50 lost",
        "$12.00 expected",
        "$15.00 left, then pause",
    ):
        assert part in shown
    assert "slots without a price are not counted" in shown
    spent = cost_text(job_view(spec=spec, cost=cost.model_copy(update={"left_usd": 0.0})))
    assert "nothing is left of its $20.00" in spent
    assert "then pause" not in spent
    assert "expected" not in cost_text(job_view(JobState.SUCCEEDED, cost=cost))
    assert cost_text(job_view()) == "nothing"
