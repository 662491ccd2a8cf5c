"""Recommendations and offers of the real service.

The cluster is empty or has measured jobs, and providers answer, fail and answer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway.contract.values.markets import Market
from headway.contract.views.forecasts import WorkSource
from headway.contract.views.recommendations import OfferPage, RecommendationView, SpeedBasis
from service.domain.rental.catalogue import BUILT_IN
from service.domain.rental.machines import Found, Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.shared.errors import Unavailable
from service.usecases.ports.rental import JoinBy
from service.usecases.rental.offers import AGAIN_AFTER, FRESH_FOR, OfferBook
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_life_of_a_job import progress, start

SPEC = {
    "name": "gpt",
    "run": "python train.py",
    "elastic": {"min": 1, "max": 8, "sizes": "pow2"},
    "resources": {"devices": ["t4", "a10g"]},
}
NOW = datetime(2026, 11, 21, tzinfo=UTC)


async def recommended(harness: Harness, **request: Any) -> RecommendationView:
    response = await harness.post("recommendations", {"spec": SPEC, **request})
    assert response.status_code == 200, response.text
    return RecommendationView.model_validate_json(response.content)


async def test_an_empty_cluster_is_told_what_to_rent(harness: Harness) -> None:
    view = await recommended(
        harness, samples=1e7, speed={"device_kind": "t4", "samples_per_s": 400}, objective="cost"
    )
    best = view.plans[0]
    assert view.unit == "samples"
    assert best.basis is SpeedBasis.GIVEN
    assert best.cost_usd == min(one.cost_usd for one in view.plans)
    assert best.marks[0] == "best"
    assert {one.device_kind for one in view.plans} <= {"t4", "a10g"}
    assert {one.slots for one in view.plans} <= {1, 2, 4, 8}
    assert view.weighed > len(view.plans)
    assert (await harness.client.get("/api/v1/jobs")).json()["items"] == []


async def test_deepvms_rating_of_plans_that_headway_runs(harness: Harness) -> None:
    view = await recommended(harness, objective="flopp", max_usd_per_h=3.0)
    best = view.plans[0]
    assert best.usd_per_h == pytest.approx(2.893)
    assert [(one.machines, one.instance_type, one.market) for one in best.groups] == [
        (15, "g4dn.xlarge", "spot"),
        (1, "g4dn.xlarge", "on-demand"),
    ]
    assert {one.architecture for one in view.plans} == {"single-anchor"}
    assert any("FLOP per dollar" in one for one in view.warnings)


async def test_a_job_of_which_nothing_is_known_is_compared_by_tflops(harness: Harness) -> None:
    view = await recommended(harness)
    assert view.plans[0].goodput is None
    assert view.plans[0].basis is SpeedBasis.ASSUMED
    assert "no measurements of the class default/gpt exist" in view.warnings[-1]
    assert view.unit == "seconds of one t4"


async def test_what_a_class_has_measured_is_what_plans_rest_on(harness: Harness) -> None:
    agent = await harness.join(slots=1, kind="t4")
    await harness.submit("gpt-7", batch={"global": 32})
    run = await start(harness, agent, "gpt-7")
    await agent.report(entry("rank_message", run, **progress(run.generation, 2_000, 200, 0.1)))
    view = await recommended(harness, samples=1e6, market="on-demand")
    by_kind = {(one.device_kind, one.slots): one for one in view.plans}
    own, other = by_kind["t4", 1], by_kind["a10g", 1]
    assert (own.basis, other.basis) == (SpeedBasis.MEASURED, SpeedBasis.TRANSFERRED)
    assert own.goodput == pytest.approx(320, rel=0.1)
    assert other.goodput == pytest.approx(320 * 70 / 65, rel=0.1)
    assert own.cost_usd == pytest.approx(own.time_s / 3600 * own.usd_per_h, rel=1e-6)
    assert view.work.source is WorkSource.UNKNOWN
    assert view.work.reason == "as the request says"


async def test_limits_that_no_plan_keeps_are_answered_by_what_would_do(harness: Harness) -> None:
    known = {"samples": 1e7, "speed": {"device_kind": "t4", "samples_per_s": 400}}
    view = await recommended(harness, **known, max_usd_per_h=0.01)
    assert view.plans == []
    assert [one.limit for one in view.nearest] == ["max_usd_per_h"]
    assert (await recommended(harness, **known, max_usd_per_h=view.nearest[0].value)).plans
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    late = await recommended(harness, **known, deadline=past)
    assert late.plans == []
    assert late.nearest[0].limit == "deadline_s"


async def test_quotas_bound_plans(harness: Harness) -> None:
    view = await recommended(harness, vcpu_quotas={"g/spot": 8, "g/on-demand": 0}, limit=200)
    assert view.plans
    for one in view.plans:
        assert sum(each.machines for each in one.groups) <= 2
        assert all(each.market == "spot" for each in one.groups)


async def test_a_kind_that_nobody_offers_is_said_to_be_none(harness: Harness) -> None:
    view = await recommended(harness, spec={**SPEC, "resources": {"devices": ["mi300x"]}})
    assert (view.plans, view.nearest) == ([], [])
    assert "no offer has mi300x" in view.warnings[-1]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"objective": "luck"}, "objective"),
        ({"max_usd_per_h": -1}, "max_usd_per_h"),
        ({"samples": 0}, "samples"),
        ({"speed": {"device_kind": "t4", "samples_per_s": 0}}, "speed.samples_per_s"),
        ({"speed": {"device_kind": "t4", "samples_per_s": 5e-324}}, "speed.samples_per_s"),
        ({"checkpoint_size": 10**30}, "checkpoint_size"),
        ({"checkpoint_size": "9" * 400}, "checkpoint_size"),
        ({"deadline": "2026-12-01T00:00:00"}, "deadline"),
        ({"vcpu_quotas": {"G-spot": 1}}, "vcpu_quotas"),
        ({"checkpoint_size": "big"}, "checkpoint_size"),
        ({"limit": 1000}, "limit"),
        ({"colour": "red"}, "colour"),
        ({"spec": {**SPEC, "resources": {"devices": ["h1000"]}}}, "spec.resources.devices"),
        ({"spec": {"name": "gpt"}}, "spec.run"),
    ],
)
async def test_a_wrong_field_is_named(harness: Harness, changes: dict[str, Any], field: str) -> None:
    response = await harness.post("recommendations", {"spec": SPEC, **changes})
    assert response.status_code == 422, response.text
    assert any(one["field"].startswith(field) for one in response.json()["errors"]), response.json()


async def test_offers_by_filter(harness: Harness) -> None:
    response = await harness.client.get(
        "/api/v1/offers", params={"device": "t4", "market": "spot", "max_usd_per_h": 0.2}
    )
    page = OfferPage.model_validate_json(response.content)
    assert [one.instance_type for one in page.items] == ["g4dn.xlarge"]
    every = OfferPage.model_validate_json((await harness.client.get("/api/v1/offers")).content)
    assert len(every.items) == len(BUILT_IN)
    assert (await harness.client.get("/api/v1/offers", params={"region": "nowhere"})).json()["items"] == []
    for wrong in ({"market": "black"}, {"max_usd_per_h": "-1"}, {"max_usd_per_h": "nan"}):
        assert (await harness.client.get("/api/v1/offers", params=wrong)).status_code == 422


async def test_offers_have_the_hazards_that_leases_have_shown(harness: Harness) -> None:
    before = OfferPage.model_validate_json(
        (await harness.client.get("/api/v1/offers", params={"device": "t4"})).content
    )
    now = datetime.now(UTC)
    async with harness.service.database.begin() as tx:
        for number in range(5):
            await tx.machines.insert(
                Machine(
                    id=f"m{number}",
                    provider="ec2",
                    region="us-east-1",
                    instance_type="g4dn.xlarge",
                    device_kind="t4",
                    slots=1,
                    market=Market.SPOT,
                    usd_per_h=0.16,
                    state=MachineState.GONE,
                    reason=MachineReason.SPOT_RECLAIMED,
                    message="",
                    requested_at=now - timedelta(hours=2),
                    state_since=now,
                    billed_from=now - timedelta(hours=2),
                    billed_to=now - timedelta(hours=1),
                )
            )
    after = OfferPage.model_validate_json(
        (await harness.client.get("/api/v1/offers", params={"device": "t4"})).content
    )
    hazards = [{one.instance_type: one.hazard_per_h for one in page.items} for page in (before, after)]
    assert hazards[1]["g4dn.xlarge"] > 2 * hazards[0]["g4dn.xlarge"]
    assert hazards[1]["g4dn.2xlarge"] == hazards[0]["g4dn.2xlarge"]


async def test_offers_need_a_token(harness: Harness) -> None:
    for method, path in (("GET", "/api/v1/offers"), ("POST", "/api/v1/recommendations")):
        response = await harness.client.request(method, path, headers={"Authorization": "Bearer x"})
        assert response.status_code == 401


class Says:
    """A provider that says what it is told to, or nothing."""

    name = "says"

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Sequence[Offer] | None = None
        self.called, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def offers(self) -> Sequence[Offer]:
        self.asked += 1
        self.called.set()
        await self.gate.wait()
        if self.answer is None:
            raise Unavailable("the price list does not answer (500).")
        return self.answer

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        raise NotImplementedError

    async def terminate(self, external_id: str) -> None:
        raise NotImplementedError

    async def list(self) -> Sequence[Found]:
        raise NotImplementedError


async def test_a_provider_that_fails_leaves_the_old_facts_and_a_note() -> None:
    provider = Says()
    book = OfferBook([provider])
    found = await book.catalogue(NOW)
    assert len(found.offers) == len(BUILT_IN)
    assert "says did not answer" in found.left_out[0]
    assert "(500)" in found.left_out[0]
    provider.answer = [replace(BUILT_IN[0], spot_usd_per_h=0.01, seen_at=NOW)]
    assert (await book.catalogue(NOW)).left_out, "it is not asked again at once"
    found = await book.catalogue(NOW + AGAIN_AFTER)
    assert not found.left_out
    assert 0.01 in {one.spot_usd_per_h for one in found.offers}
    provider.answer = None
    later = NOW + AGAIN_AFTER + FRESH_FOR
    found = await book.catalogue(later)
    assert 0.01 in {one.spot_usd_per_h for one in found.offers}
    assert provider.asked == 3
    await book.catalogue(NOW - FRESH_FOR)
    assert provider.asked == 4, "the clock was set back: nobody waits until it is where it was"


async def test_many_who_ask_at_once_make_one_request() -> None:
    provider = Says()
    provider.answer = []
    provider.gate.clear()
    book = OfferBook([provider])
    asking = [asyncio.create_task(book.catalogue(NOW)) for _ in range(5)]
    await provider.called.wait()
    provider.gate.set()
    await asyncio.gather(*asking)
    assert provider.asked == 1
