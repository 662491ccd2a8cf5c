"""A package of somebody else's, installed by pip: its policy runs rounds, and its provider rents machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headway.contract.agents import JoinReply
from headway.contract.views.decisions import ClusterView, RoundView
from headway.contract.views.jobs import JobState
from headway.contract.views.machines import MachineView
from service.adapters.provider_choice import installed_providers
from service.domain.cluster.contention_rules import ContentionRules
from service.environment import SettingsError
from service.main import wall_now
from service.plugins import installed_policies
from service.settings import RentalSettings
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, join_body, make_settings
from tests.integration.service.test_life_of_a_job import start, stop

EXAMPLE = Path(__file__).parent / "example"
ROOT = Path(__file__).parents[3]
JOBS = "job_id,submission_time,duration,num_gpu\n" + "".join(f"job-{row},{row},3000,2\n" for row in range(3))
CLUSTER = "kinds:\n  - {kind: a100, nodes: 1, slots_per_node: 2, usd_per_slot_h: 2}\n"
FAILING = """
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Failing:
    \"\"\"A policy that raises.\"\"\"

    name: ClassVar[str] = "failing"
    protocol: ClassVar[int] = 1

    def choose(self, given, solve):
        raise KeyError("credit_s")
"""
NEVER_KEPT = ContentionRules(min_run_s=0.0, max_wait_s=86_400.0)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder into which pip has built and installed the package, from nothing but what is here."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    options = ["--no-build-isolation", "--no-deps", "--target", str(folder), str(EXAMPLE)]
    subprocess.run([*pip, *options], check=True, timeout=240)
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for module in [name for name in sys.modules if name.split(".")[0] == "headway_example"]:
            del sys.modules[module]


@pytest.fixture
def urls(database_url: str, redis_url: str, tmp_path: Path) -> tuple[str, str, str]:
    return database_url, redis_url, f"file://{tmp_path}/storage"


def started(urls: tuple[str, str, str]) -> AbstractAsyncContextManager[Harness]:
    """The service as it starts where the package is installed."""
    return harness_of(make_settings(*urls, contention=NEVER_KEPT), policies=installed_policies())


async def credit_s(harness: Harness) -> dict[str, float]:
    """Return the seconds that the policy has carried over, by the name of the job."""
    async with harness.service.database.begin() as tx:
        snapshot = await tx.rounds.snapshot(harness.clock.now())
    kept: dict[str, float] = snapshot.policy_state["state"]["credit_s"]
    return {snapshot.jobs[job].name: seconds for job, seconds in kept.items()}


@pytest.mark.slow
async def test_its_policy_is_chosen_over_the_api_and_goes_on_after_a_restart(
    installed: Path, urls: tuple[str, str, str]
) -> None:
    async with started(urls) as harness:
        wanted = {"policy": "credit", "parameters": {"price": 1}}
        answer = await harness.client.put("/api/v1/cluster", json=wanted)
        assert answer.status_code == 200, answer.text
        view = ClusterView.model_validate_json(answer.content)
        (listed,) = (one for one in view.policies if one.name == "credit")
        assert [(one.name, one.default, one.interval) for one in listed.parameters] == [
            ("price", 2.0, "above 0")
        ]
        agent = await harness.join(slots=1)
        await harness.submit("first")
        run = await start(harness, agent, "first")
        await harness.submit("second")
        await harness.turn()
        harness.clock.skipped += timedelta(seconds=600)
        await harness.turn()
        credit = await credit_s(harness)
    assert credit == {"first": pytest.approx(-600, abs=30), "second": pytest.approx(600, abs=30)}
    skipped = harness.clock.skipped
    async with started(urls) as harness:
        harness.clock.skipped = skipped
        agent.client, agent.redis = harness.client, harness.service.redis
        await harness.post("jobs/first/pause")
        await harness.scheduler.deliver()
        await stop(agent, run)
        await harness.post("jobs/first/resume")
        assert {(await harness.job(name)).state for name in ("first", "second")} == {JobState.PENDING}
        await harness.turn()
        assert (await harness.job("second")).state is JobState.STARTING, (
            "it has waited, the other one has run"
        )
        latest = RoundView.model_validate_json((await harness.client.get("/api/v1/rounds/latest")).content)
        assert (latest.policy, latest.parameters) == ("credit", {"price": 1})
        again = await credit_s(harness)
    assert again == {name: pytest.approx(seconds, abs=60) for name, seconds in credit.items()}


async def test_where_the_package_is_gone_rounds_follow_the_default(
    installed: Path, urls: tuple[str, str, str]
) -> None:
    async with started(urls) as harness:
        assert (await harness.client.put("/api/v1/cluster", json={"policy": "credit"})).status_code == 200
    async with harness_of(make_settings(*urls)) as harness:
        with capture_logs() as logs:
            await harness.service.check()
        (line,) = (one for one in logs if one["event"] == "policy_missing")
        assert (line["policy"], line["instead"]) == ("credit", "goodput")
        await harness.submit()
        await start(harness, await harness.join(slots=1))
        refused = await harness.client.put("/api/v1/cluster", json={"policy": "credit"})
        assert refused.json()["code"] == "invalid_field"


@pytest.mark.slow
async def test_its_provider_rents_a_host_for_a_job_and_gives_it_back(
    installed: Path, urls: tuple[str, str, str], tmp_path: Path
) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    env = {"SHELF_FOLDER": str(orders), "SHELF_USD_PER_H": "0.25"}
    rental = RentalSettings(providers=("shelf",), public_url="http://headway", idle_s=0.0)
    providers = installed_providers(rental.providers, env, wall_now)
    settings = make_settings(*urls, rental=rental)
    async with harness_of(settings, api_skips=True, providers=providers) as harness:
        rents = harness.service.rents(harness.service.database)
        offers = (await harness.client.get("/api/v1/offers", params={"provider": "shelf"})).json()["items"]
        assert [(one["instance_type"], one["on_demand_usd_per_h"]) for one in offers] == [("host", 0.25)]
        await harness.submit(elastic={"min": 2})
        await rents.run_once()
        (file,) = orders.glob("*.json")
        agent = await joined(harness, json.loads(file.read_text()))
        run = await start(harness, agent)
        await rents.run_once()
        assert [one.state for one in await machines(harness)] == ["running"]
        await agent.report(
            entry("rank_exited", run, rank=0, exit_code=0), entry("rank_exited", run, rank=1, exit_code=0)
        )
        await agent.report(entry("released", run))
        assert (await harness.job()).state is JobState.SUCCEEDED
        harness.clock.skipped += timedelta(seconds=90)  # a host is paid for a minute at least
        for _ in range(4):
            await rents.run_once()
            await harness.turn()
        assert "to" in json.loads(file.read_text())
        (machine,) = await machines(harness)
        assert (machine.state, machine.provider, machine.usd_per_h) == ("gone", "shelf", 0.25)


async def joined(harness: Harness, order: dict[str, str]) -> Agent:
    """The agent of a host that has found its order."""
    answer = await harness.client.post(
        "/api/v1/agents",
        json=join_body(order["node"], 2),
        headers={"Authorization": f"Bearer {order['token']}"},
    )
    assert answer.status_code == 201, answer.text
    reply = JoinReply.model_validate_json(answer.content)
    return Agent(harness.client, harness.service.redis, order["node"], reply)


async def machines(harness: Harness) -> list[MachineView]:
    page = (await harness.client.get("/api/v1/machines")).json()
    return [MachineView.model_validate(one) for one in page["items"]]


def test_a_missing_setting_of_the_provider_is_named(installed: Path) -> None:
    with pytest.raises(SettingsError, match="SHELF_FOLDER"):
        installed_providers(["shelf"], {}, wall_now)


@pytest.mark.slow
def test_the_simulator_replays_under_the_policy(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    run = program(
        installed,
        "service.simulation",
        "--jobs",
        "jobs.csv",
        "--cluster",
        "cluster.yaml",
        "--policy",
        "credit,fifo",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "simulation" / "summary.json").read_text())
    changes = {one["policy"]: one["mean"]["changes"] for one in summary["policies"]}
    assert changes["credit"] > changes["fifo"]


@pytest.mark.slow
def test_a_package_that_cannot_be_used_stops_the_service_at_its_start(
    installed: Path, tmp_path: Path
) -> None:
    info = tmp_path / "broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[headway.policies]\nbest = broken.policy:Best\n")
    env = dict.fromkeys(
        ("HEADWAY_DATABASE_URL", "HEADWAY_REDIS_URL", "HEADWAY_STORAGE_URL"), "redis://nowhere"
    )
    run = program(tmp_path, "service", "api", cwd=tmp_path, env=env)
    assert run.returncode == 1
    assert run.stderr.startswith("headway service: plugin_import: ")
    assert "broken 0.1" in run.stderr


def test_a_policy_that_fails_ends_a_simulation_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "failing.py").write_text(FAILING)
    info = tmp_path / "failing-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[headway.policies]\nfailing = failing:Failing\n")
    arguments = ("--jobs", "jobs.csv", "--cluster", "cluster.yaml", "--policy", "failing,fifo")
    run = program(tmp_path, "service.simulation", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr == "the policy failing failed: `choose`: KeyError: 'credit_s'\n"


def program(
    installed: Path, module: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None
) -> Any:
    """A program where the packages of this folder are installed."""
    path = os.pathsep.join([str(installed), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {}), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
