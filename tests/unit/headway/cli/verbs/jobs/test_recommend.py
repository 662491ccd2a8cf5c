from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.main import app
from headway.cli.render import rental as render
from headway.contract.values.markets import Market
from headway.contract.views.forecasts import Work, WorkSource
from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView
from headway.contract.views.recommendations import (
    GroupView,
    NearestPlan,
    Objective,
    OfferPage,
    OfferView,
    PricedOffer,
    RecommendationView,
    RentalPlan,
    SpeedBasis,
)
from tests.unit.headway.cli.verbs.cluster.test_machines import machine_view as view_of_machine
from tests.unit.headway.cli.verbs.jobs.test_decisions import run
from tests.unit.headway.cli.verbs.jobs.test_jobs import text
from tests.unit.headway.stub import NOW, StubService, ok, refusal

ASK = "POST /api/v1/recommendations"
OFFERS = "GET /api/v1/offers"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt\nrun: python train.py\nelastic: {min: 1, max: 8}\n")
    return str(path)


def group(role: str, machines: int, name: str, market: Market, usd: float) -> GroupView:
    return GroupView(
        role=role,  # type: ignore[arg-type]
        machines=machines,
        instance_type=name,
        market=market,
        provider="ec2",
        region="us-east-1",
        zone="",
        usd_per_h=usd,
    )


def plan(**changes: Any) -> RentalPlan:
    fields: dict[str, Any] = {
        "architecture": "tiering",
        "groups": [
            group("worker", 17, "g4dn.xlarge", Market.SPOT, 2.6826),
            group("remote", 1, "c5.xlarge", Market.ON_DEMAND, 0.17),
        ],
        "device_kind": "t4",
        "slots": 17,
        "usd_per_h": 2.8526,
        "goodput": 5120.0,
        "basis": SpeedBasis.MEASURED,
        "losses_per_h": 1.0,
        "kept": 0.97,
        "checkpoint_every_s": 340.0,
        "time_s": 3700.0,
        "time_p90_s": 5000.0,
        "cost_usd": 2.93,
        "cost_p90_usd": 3.96,
        "marks": ["best", "front"],
        "reasons": ["17 of 18 on spot: 68% off the on-demand price"],
    }
    return RentalPlan(**{**fields, **changes})


def offer(**changes: Any) -> OfferView:
    fields: dict[str, Any] = {
        "provider": "ec2",
        "region": "us-east-1",
        "zone": "",
        "instance_type": "g5.xlarge",
        "device_kind": "a10g",
        "devices": 1,
        "tflops": 70.0,
        "device_memory_bytes": 24 << 30,
        "vcpus": 4,
        "memory_bytes": 16 << 30,
        "network_gbps": 10.0,
        "on_demand_usd_per_h": 1.006,
        "spot_usd_per_h": None,
        "hazard_per_h": 0.1,
        "seen_at": NOW,
    }
    return OfferView(**{**fields, **changes})


def priced(name: str, on_demand: float, spot: float | None, hour: float) -> PricedOffer:
    return PricedOffer(
        offer=offer(instance_type=name, on_demand_usd_per_h=hour, spot_usd_per_h=spot and hour / 3),
        slots=1,
        goodput=350.0,
        basis=SpeedBasis.TRANSFERRED,
        on_demand_usd_per_unit=on_demand,
        spot_usd_per_unit=spot,
    )


def view(**changes: Any) -> RecommendationView:
    fields: dict[str, Any] = {
        "name": "gpt",
        "at": NOW,
        "objective": Objective.BALANCED,
        "work": Work(
            samples=1e6, samples_p90=1e6, source=WorkSource.SCRIPT, reason="the script says how many"
        ),
        "unit": "samples",
        "plans": [plan()],
        "nearest": [],
        "offers": [priced("g5.xlarge", 0.8, None, 1.0), priced("g4dn.xlarge", 0.6, 0.2, 0.5)],
        "weighed": 227,
        "warnings": ["a note"],
    }
    return RecommendationView(**{**fields, **changes})


def test_the_best_plan_is_said_first() -> None:
    page = text(render.recommendation_page(view()))
    lines = page.splitlines()
    assert lines[0] == "Rent 17 g4dn.xlarge spot + 1 c5.xlarge on-demand (remote): $2.853 an hour", (
        "what to rent, in words"
    )
    assert lines[1].strip() == "done in 1h01m (P90 1h23m) for $2.93 (P90 $3.96)"
    assert "68% off" in lines[2]
    assert "2.8526" in page
    assert "measured" in page
    assert "best; front" in page
    assert "note: a note" in page
    assert "227 plans weighed" in page


def test_deepvms_value_is_shown_where_it_ranks() -> None:
    page = text(render.recommendation_page(view(objective=Objective.FLOPP, plans=[plan(flopp=1.4543e8)])))
    assert "FLOPP" in page
    assert "1.454e+08" in page


def test_where_nothing_fits_what_would_do_is_said() -> None:
    nearest = [
        NearestPlan(limit="max_cost_usd", value=2.93, reason="$2.93 would be enough", plan=plan(marks=[]))
    ]
    page = text(render.recommendation_page(view(plans=[], nearest=nearest)))
    assert page.startswith("No plan is within the limits.\n  budget: $2.93 would be enough")
    assert "17 g4dn.xlarge spot" in page


def test_a_job_of_unknown_speed_has_no_goodput() -> None:
    page = text(render.recommendation_page(view(plans=[plan(goodput=None, basis=SpeedBasis.ASSUMED)])))
    assert "a guess" in page


def test_options_reach_the_service_and_what_is_not_given_does_not(file: str) -> None:
    service = StubService()
    service.on(ASK, ok(view()))
    found = run(
        service,
        *("recommend", file, "--objective", "cost", "--max-usd-per-h", "3", "--market", "spot"),
        *("--samples", "1000", "--samples-per-s", "t4=350", "--checkpoint-size", "4GiB", "-o", "json"),
    )
    assert found.exit_code == 0, found.output
    body = service.body(ASK)
    assert body.pop("spec") == {"name": "gpt", "run": "python train.py", "elastic": {"min": 1, "max": 8}}
    assert body == {
        "objective": "cost",
        "max_usd_per_h": 3.0,
        "market": "spot",
        "samples": 1000.0,
        "speed": {"device_kind": "t4", "samples_per_s": 350.0},
        "checkpoint_size": 4 << 30,
        "limit": 10,
    }
    assert json.loads(found.output)["plans"][0]["usd_per_h"] == 2.8526


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--samples-per-s", "fast"), "--samples-per-s fast: not of the form KIND=RATE"),
        (("--samples-per-s", "t4=0"), "--samples-per-s t4=0"),
        (("--max-usd-per-h", "-1"), "--max-usd-per-h"),
        (("--deadline", "2026-12-01T00:00:00"), "--deadline"),
        (("--checkpoint-size", "big"), "--checkpoint-size"),
    ],
)
def test_a_wrong_option_is_named(file: str, options: tuple[str, ...], said: str) -> None:
    found = run(StubService(), "recommend", file, *options)
    assert found.exit_code == 1
    assert said in found.output


def test_a_refusal_is_shown_as_it_is(file: str) -> None:
    service = StubService()
    service.on(ASK, refusal(422, "invalid_field", "no device kind is called 'h1000'"))
    found = run(service, "recommend", file)
    assert found.exit_code == 1
    assert "no device kind is called 'h1000'" in found.output


def test_offers_are_listed_by_filter() -> None:
    service = StubService()
    service.on(OFFERS, ok(OfferPage(items=[offer()], notes=["ec2 does not answer"])))
    found = run(service, "offers", "--device", "a10g", "--market", "on-demand", "--max-usd", "2")
    assert found.exit_code == 0, found.output
    assert dict(service.sent(OFFERS)[0].url.params) == {
        "device": "a10g",
        "market": "on-demand",
        "max_usd_per_h": "2.0",
    }
    assert "g5.xlarge" in found.output
    assert "1.006" in found.output
    assert "2026-11-21" in found.output
    assert "ec2 does not answer" in found.output


def test_without_offers_that_is_said() -> None:
    service = StubService()
    service.on(OFFERS, ok(OfferPage(items=[])))
    assert "No offer matches all conditions." in run(service, "offers").output


def test_offers_for_a_job_are_by_what_it_costs_there(file: str) -> None:
    service = StubService()
    service.on(ASK, ok(view()))
    found = run(service, "offers", "--for", file, "--device", "t4")
    body = service.body(ASK)
    assert (body["limit"], body["spec"]["resources"]) == (0, {"devices": ["t4"]})
    assert "A MILLION SAMPLES" in found.output
    assert found.output.index("g4dn.xlarge") < found.output.index("g5.xlarge")
    dear = run(service, "offers", "--for", file, "--max-usd", "0.7")
    assert "g5.xlarge" not in dear.output
    spot = run(service, "offers", "--for", file, "--market", "spot")
    assert "g5.xlarge" not in spot.output


def test_a_speed_without_a_job_says_nothing() -> None:
    found = run(StubService(), "offers", "--samples-per-s", "t4=3")
    assert found.exit_code == 1
    assert "Add --for FILE" in found.output


LEASE = "POST /api/v1/jobs/gpt/machines"


def leased(service: StubService, *plans: RentalPlan) -> None:
    """Let the service recommend plans and lease machines."""
    service.on(ASK, ok(view(plans=list(plans))))
    service.on(LEASE, ok(Page[MachineView](items=[view_of_machine(job_id="j1")])))


CHEAP = plan(
    groups=[group("worker", 2, "g4dn.xlarge", Market.SPOT, 0.32)],
    architecture="all-spot",
    usd_per_h=0.32,
)


def test_the_best_plan_is_rented_for_the_job_of_the_file(file: str) -> None:
    service = StubService()
    leased(service, plan(), CHEAP)
    found = run(service, "recommend", file, "--rent", "--yes")
    assert found.exit_code == 0, found.output
    body = service.body(LEASE)
    assert body["max_usd_per_h"] == 2.8526
    assert [(one["instance_type"], one["market"], one["machines"]) for one in body["groups"]] == [
        ("g4dn.xlarge", "spot", 17),
        ("c5.xlarge", "on-demand", 1),
    ]
    assert set(body["groups"][0]) == {"provider", "region", "zone", "instance_type", "market", "machines"}
    assert "Rent 17 g4dn.xlarge spot" in found.output
    assert "m1" in found.output or "i-1" in found.output


def test_another_plan_is_rented_by_its_row(file: str) -> None:
    service = StubService()
    leased(service, plan(), CHEAP)
    found = run(service, "recommend", file, "--rent", "--yes", "--plan", "2", "-o", "json")
    assert found.exit_code == 0, found.output
    assert service.body(LEASE)["max_usd_per_h"] == 0.32
    assert json.loads(found.output)["items"][0]["job_id"] == "j1", "the machines alone"
    missing = run(service, "recommend", file, "--rent", "--yes", "--plan", "3")
    assert missing.exit_code == 1
    assert "no plan 3" in missing.output


@pytest.mark.parametrize(("answer", "rents"), [("y\n", True), ("n\n", False), ("", False)])
def test_nothing_is_rented_without_a_yes(file: str, answer: str, *, rents: bool) -> None:
    service = StubService()
    leased(service, CHEAP)
    found = CliRunner().invoke(
        app, ["recommend", file, "--rent"], obj=Cli(connect=service.client), input=answer
    )
    assert (found.exit_code == 0) is rents
    assert bool(service.sent(LEASE)) is rents
