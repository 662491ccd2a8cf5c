"""Policies that raise or break the rules of their interface: rounds and renting go on under the default policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from structlog.testing import capture_logs

from headway.contract.views.decisions import RoundView
from headway.contract.views.jobs import JobState
from service.domain.policies.fifo import Fifo
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.registry import POLICIES, Policies
from service.extending import Choices, Policy, RoundHistory, RoundInput, Solve
from service.main import wall_now
from service.settings import RentalSettings
from tests.integration.service.cloud import Cloud, small_offer
from tests.integration.service.conftest import harness_of, make_settings
from tests.integration.service.test_life_of_a_job import start


@dataclass(frozen=True, slots=True)
class Raises(Fifo):
    """A policy that raises."""

    name: ClassVar[str] = "raises"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        raise KeyError("credit_s")


@dataclass(frozen=True, slots=True)
class RaisesFirst(Fifo):
    """A policy that raises before it chooses."""

    name: ClassVar[str] = "raises-first"

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        raise ZeroDivisionError("division by zero")


@dataclass(frozen=True, slots=True)
class KeepsAnArray(Fifo):
    """A policy whose state JSON cannot express."""

    name: ClassVar[str] = "keeps-an-array"

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        return self, {"age_s": given.age_s}


@dataclass(frozen=True, slots=True)
class Oversells(Fifo):
    """A policy that gives every job the largest configuration, whatever the rows leave."""

    name: ClassVar[str] = "oversells"

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        most = np.full(len(given.goodput), len(given.configurations.slots) - 1)
        return replace(Fifo.choose(self, given, solve), chosen=most)


@dataclass(frozen=True, slots=True)
class Heals(Fifo):
    """A policy that raises unless its parameter is 1."""

    name: ClassVar[str] = "heals"
    works: float = parameter(0.0, "1: the policy works.", at_least=0, at_most=1)

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        if not self.works:
            raise RuntimeError("not yet")
        return Fifo.choose(self, given, solve)


ADDED = (Raises, RaisesFirst, KeepsAnArray, Oversells, Heals)
KNOWN = Policies({**POLICIES, **{kind.name: kind for kind in ADDED}})


@pytest.fixture
def urls(database_url: str, redis_url: str, tmp_path: Path) -> tuple[str, str, str]:
    return database_url, redis_url, f"file://{tmp_path}/storage"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("raises", "`choose`: KeyError: 'credit_s'"),
        ("raises-first", "`advance`: ZeroDivisionError: division by zero"),
        ("keeps-an-array", "`advance`: TypeError"),
        ("oversells", "4 of 2 slots"),
    ],
)
async def test_rounds_follow_the_default_policy_while_the_chosen_one_fails(
    urls: tuple[str, str, str], policy: str, error: str
) -> None:
    async with harness_of(make_settings(*urls), policies=KNOWN) as harness:
        chosen = await harness.client.put("/api/v1/cluster", json={"policy": policy})
        assert chosen.status_code == 200, chosen.text
        agent = await harness.join(slots=2)
        await harness.submit("first", elastic={"min": 2})
        await harness.submit("second", elastic={"min": 2})
        with capture_logs() as logs:
            await start(harness, agent, "first")
            await harness.turn()
        assert (await harness.job("second")).state is JobState.PENDING
        (line,) = [one for one in logs if one["event"] == "policy_failed"]
        assert (line["log_level"], line["policy"], line["instead"]) == ("error", policy, "goodput")
        assert error in line["error"]
        latest = RoundView.model_validate_json((await harness.client.get("/api/v1/rounds/latest")).content)
        assert (latest.policy, latest.parameters) == ("goodput", {})
        assert (await harness.client.get("/api/v1/cluster")).json()["policy"] == policy
        rounds = harness.service.telemetry.registry.get_sample_value(
            "headway_policy_failures_total", {"policy": policy}
        )
        assert (rounds or 0) >= 2


async def test_a_policy_that_works_again_decides_again(urls: tuple[str, str, str]) -> None:
    async with harness_of(make_settings(*urls), policies=KNOWN) as harness:
        await harness.client.put("/api/v1/cluster", json={"policy": "heals"})
        await start(harness, await harness.join(slots=1), (await harness.submit()).name)
        await harness.client.put("/api/v1/cluster", json={"policy": "heals", "parameters": {"works": 1}})
        with capture_logs() as logs:
            await harness.turn()
        assert [one["event"] for one in logs if "policy" in one["event"]] == ["policy_works_again"]
        latest = RoundView.model_validate_json((await harness.client.get("/api/v1/rounds/latest")).content)
        assert (latest.policy, latest.parameters) == ("heals", {"works": 1})


async def test_renting_follows_the_default_policy_while_the_chosen_one_fails(
    urls: tuple[str, str, str],
) -> None:
    cloud = Cloud(wall_now)
    cloud.sells.append(small_offer(wall_now(), spot_usd_per_h=None))
    settings = make_settings(*urls, rental=RentalSettings(providers=("cloud",), public_url="http://headway"))
    async with harness_of(settings, policies=KNOWN, providers=[cloud]) as harness:
        await harness.client.put("/api/v1/cluster", json={"policy": "raises"})
        await harness.submit(elastic={"min": 2})
        with capture_logs() as logs:
            await harness.service.rents(harness.service.database).run_once()
        assert len(cloud.running()) == 1
        (line,) = [one for one in logs if one["event"] == "policy_failed"]
        assert (line["policy"], line["instead"]) == ("raises", "goodput")
