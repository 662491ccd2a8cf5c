"""Objects of other projects are invisible in every answer of every route that reads, by the API's description."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from headway.contract.agents import RunCommand
from headway.contract.views.identity import Role
from headway.contract.views.simulations import JobComparison, SimulationRequest, SimulationResult
from service.domain.cluster.snapshot import Snapshot
from service.http_settings import HttpSettings
from service.usecases.ports.simulations import OnProgress
from service.usecases.simulations.simulations import run_next
from tests.integration.service.conftest import Agent, Harness, entry, harness_of, make_settings
from tests.integration.service.roles import OF_AGENTS, OPEN, Operation, operations_of, robot

MINE, THEIRS = "azure", "crimson"


async def two_tenants(harness: Harness) -> tuple[Agent, dict[str, dict[str, str]]]:
    """Two projects that have one of everything, with their names in it, and the names of these things."""
    agent = await harness.join(slots=4, host={"executes": True})
    names: dict[str, dict[str, str]] = {}
    for project in (MINE, THEIRS):
        (
            await harness.client.put(f"/api/v1/projects/{project}", json={"quota": {"slots": 2}})
        ).raise_for_status()
        budget = {"usd": 500, "period": "month", "project": project}
        (await harness.client.put(f"/api/v1/budgets/{project}-cap", json=budget)).raise_for_status()
        token = (await robot(harness, Role.ADMIN, project)).json()
        runs = await harness.submit(f"{project}-runs", project=project, elastic={"min": 1, "max": 1})
        waits = await harness.submit(f"{project}-waits", project=project, elastic={"min": 4, "max": 4})
        shared = await harness.submit("shared-name", project=project, elastic={"min": 4, "max": 4})
        # The trials wait, as the other jobs that need more slots than there are.
        sweep = await harness.submit_sweep(
            f"{project}-sweep", {"lr": [0.1]}, project=project, elastic={"min": 4, "max": 4}
        )
        question = {"changes": [{"change": "drop_job", "job": f"{project}-waits"}]}
        asked = await harness.client.post(
            "/api/v1/simulations", json=question, headers=bearer(token["token"])
        )
        names[project] = {
            "token": token["token"],
            "token_id": token["id"],
            "job": runs.id,
            "waits": waits.id,
            "shared": shared.id,
            "simulation_id": asked.json()["id"],
            "sweep": sweep.id,
            "trial": sweep.trials[0].job_id,
        }
    await harness.client.put("/api/v1/budgets/cluster-cap", json={"kind": "hourly-cap", "usd": 1000})
    await harness.turn()
    for run in (one for one in await agent.commands() if isinstance(one, RunCommand)):
        await agent.report(entry("ranks_started", run, how="zygote"))
    await harness.turn()
    for project in (MINE, THEIRS):
        names[project]["execution"] = f"x{project}"
        command = {"id": f"x{project}", "argv": ["true"]}
        asked = await harness.client.post(f"/api/v1/jobs/{project}-runs/executions", json=command)
        assert asked.status_code == 201, asked.text
    return agent, names


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def path_of(operation: Operation, project: str, names: dict[str, str], node_id: str) -> str:
    """The path with the names of a project's things."""
    values = {
        "project": project,
        "name": project if "/projects/{name}" in operation.path else f"{project}-cap",
        "node": "alpha",
        "node_id": node_id,
        "round_id": "latest",
        "digest": "sha256:" + "0" * 64,
        "generation": "1",
        "rank": "0",
        "job_id": names["job"],
        **names,
    }
    query = "?path=model.pt" if operation.id == "read_output_part" else ""
    return re.sub(r"{(\w+)}", lambda found: values[found[1]], operation.path) + query


async def reading(harness: Harness) -> list[Operation]:
    document = (await harness.client.get("/openapi.json")).json()
    return [
        one
        for one in operations_of(document, "")
        if one.method == "GET" and one.id not in OPEN | OF_AGENTS and "text/event-stream" not in one.path
    ]


async def test_what_is_another_projects_cannot_be_seen(harness: Harness) -> None:
    agent, names = await two_tenants(harness)
    await no_answer_holds_anything_of_another_project(harness, agent, names)
    await admins_of_everything_see_both(harness, agent, names)
    await slots_and_changes_of_others_are_there_without_names(harness, names)
    await asking_for_another_project_by_name_is_asking_for_nothing(harness, names)
    for operation in ("plan_job", "recommend"):
        await nobody_plans_with_what_another_project_has_learned(harness, names, operation)


async def test_owners_are_seen_with_their_jobs_and_no_further(harness: Harness) -> None:
    tokens = {}
    for project in (MINE, THEIRS):
        (await harness.client.put(f"/api/v1/projects/{project}", json={})).raise_for_status()
        tokens[project] = (await robot(harness, Role.USER, project)).json()["token"]
        body = {"name": f"{project}-runs", "run": "python -V", "project": project}
        made = await harness.client.post("/api/v1/jobs", json=body, headers=bearer(tokens[project]))
        assert made.json()["owner"] == "robot r"
    assert (await harness.submit("of-admin", project=MINE)).owner == "admin"

    async def names(query: str, token: str | None = None) -> set[str]:
        headers = {} if token is None else bearer(token)
        listed = await harness.client.get(f"/api/v1/jobs{query}", headers=headers)
        return {one["name"] for one in listed.json()["items"]}

    assert await names("?owner=robot r") == {f"{MINE}-runs", f"{THEIRS}-runs"}
    assert await names("?owner=robot r", tokens[MINE]) == {f"{MINE}-runs"}
    assert await names("?owner=admin", tokens[THEIRS]) == set()
    assert await names("?owner=admin") == {"of-admin"}
    shown = await harness.client.get("/jobs?owner=admin", headers=bearer(tokens[MINE]))
    assert "of-admin" in shown.text
    assert f"{MINE}-runs" not in shown.text
    assert (
        'href="/jobs?owner=robot%20r"'
        in (await harness.client.get(f"/jobs/{MINE}-runs", headers=bearer(tokens[MINE]))).text
    )


class Naming:
    """Answers what-if questions with every job and its name."""

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: OnProgress,
    ) -> SimulationResult:
        jobs = [JobComparison(job_id=one.id, name=one.name, outcomes=[]) for one in snapshot.jobs.values()]
        return SimulationResult(
            at=snapshot.now,
            seeds=request.seeds,
            horizon_s=request.horizon_s,
            outcomes=[],
            jobs=jobs,
            warnings=[f"{one.name} is of unknown length" for one in snapshot.jobs.values()],
        )


Names: TypeAlias = dict[str, dict[str, str]]


async def no_answer_holds_anything_of_another_project(harness: Harness, agent: Agent, names: Names) -> None:
    mine, theirs = names[MINE], names[THEIRS]
    signs = {
        THEIRS,
        *(
            theirs[one]
            for one in (
                "job",
                "waits",
                "shared",
                "simulation_id",
                "token_id",
                "execution",
                "sweep",
                "trial",
            )
        ),
    }
    asked, read = await reading(harness), 0
    for operation in asked:
        own = await harness.client.get(
            path_of(operation, MINE, mine, agent.joined.node_id), headers=bearer(mine["token"])
        )
        assert own.status_code in {200, 403, 404}, f"{operation.id}: {own.text}"
        read += own.status_code == 200
        shown = [sign for sign in signs if sign in own.text]
        assert not shown, f"{operation.id} shows {shown}: {own.text}"
        if operation.path != path_of(operation, "", dict.fromkeys(mine, ""), ""):
            path = path_of(operation, THEIRS, theirs, agent.joined.node_id)
            if path != path_of(operation, MINE, mine, agent.joined.node_id):
                other = await harness.client.get(path, headers=bearer(mine["token"]))
                assert other.status_code in {403, 404}, (
                    f"{operation.id} shows another project's: {other.text}"
                )
    assert read >= 20, "most of them were read"


async def admins_of_everything_see_both(harness: Harness, agent: Agent, names: Names) -> None:
    about = [
        one
        for one in await reading(harness)
        if one.id in {"list_jobs", "list_sweeps", "list_nodes", "list_budgets", "list_rounds"}
    ]
    assert len(about) == 5
    for operation in about:
        path = path_of(operation, MINE, names[MINE], agent.joined.node_id)
        text = (await harness.client.get(path)).text
        assert MINE in text, operation.id
        assert THEIRS in text, operation.id


async def slots_and_changes_of_others_are_there_without_names(harness: Harness, names: Names) -> None:
    headers = bearer(names[MINE]["token"])
    (node,) = (await harness.client.get("/api/v1/nodes", headers=headers)).json()["items"]
    holders = sorted((slot["job_name"] or "") for slot in node["slots"])
    assert holders == ["", "", "another project", "azure-runs"]
    rounds = (await harness.client.get("/api/v1/rounds", headers=headers)).json()["items"]
    assert sum(one["other_changes"] for one in rounds) == sum(len(one["changes"]) for one in rounds) == 1
    everything = (await harness.client.get("/api/v1/rounds")).json()["items"]
    assert sum(len(one["changes"]) for one in everything) == 2


async def asking_for_another_project_by_name_is_asking_for_nothing(harness: Harness, names: Names) -> None:
    headers = bearer(names[MINE]["token"])
    for path in (
        f"jobs?project={THEIRS}",
        f"usage?project={THEIRS}",
        f"jobs/{THEIRS}-runs?project={THEIRS}",
        f"jobs/{THEIRS}-runs",
        f"jobs/{names[THEIRS]['job']}/logs",
        f"sweeps?project={THEIRS}",
        f"sweeps/{THEIRS}-sweep",
        f"sweeps/{names[THEIRS]['sweep']}/results",
        f"jobs/{names[THEIRS]['job']}/checkpoints",
    ):
        answer = await harness.client.get(f"/api/v1/{path}", headers=headers)
        assert answer.status_code == 404, path
    for by in ("job", "project", "market", "node", "category", "day"):
        shown = await harness.client.get(f"/api/v1/usage?group_by={by}", headers=headers)
        assert shown.status_code == 200
        assert THEIRS not in shown.text
    assert (await harness.client.get("/api/v1/cluster", headers=headers)).json()["jobs"] == {
        "PENDING": 3,
        "RUNNING": 1,
    }


async def nobody_plans_with_what_another_project_has_learned(
    harness: Harness, names: Names, operation: str
) -> None:
    path = {"plan_job": "plans", "recommend": "recommendations"}[operation]
    for project, status in ((THEIRS, 404), (MINE, 200)):
        spec: dict[str, Any] = {"name": "runs", "run": "python -V", "project": project}
        body = spec if operation == "plan_job" else {"spec": spec, "limit": 0}
        answer = await harness.client.post(f"/api/v1/{path}", json=body, headers=bearer(names[MINE]["token"]))
        assert answer.status_code == status, answer.text
        assert THEIRS not in answer.text.replace(f"'{THEIRS}'", "")


async def one_name_is_two_jobs(harness: Harness, names: Names) -> None:
    for project in (MINE, THEIRS):
        found = await harness.client.get("/api/v1/jobs/shared-name", headers=bearer(names[project]["token"]))
        assert found.json()["id"] == names[project]["shared"]
        found = await harness.client.get(f"/api/v1/jobs/shared-name?project={project}")
        assert found.json()["id"] == names[project]["shared"]
        await harness.client.post(f"/api/v1/jobs/shared-name/cancel?project={project}")
        assert (await harness.job(names[project]["shared"])).state == "CANCELLED"


async def budgets_are_set_by_admins_of_their_project(harness: Harness, names: Names) -> None:
    headers = bearer(names[MINE]["token"])
    wanted = {"usd": 1, "period": "day", "project": THEIRS}
    assert (await harness.client.put("/api/v1/budgets/new", json=wanted, headers=headers)).status_code == 404
    own = {**wanted, "project": MINE}
    taken = await harness.client.put(f"/api/v1/budgets/{THEIRS}-cap", json=own, headers=headers)
    assert taken.status_code == 403
    for name in (f"{THEIRS}-cap", "cluster-cap"):
        assert (await harness.client.delete(f"/api/v1/budgets/{name}", headers=headers)).status_code == 404
    everywhere = await harness.client.put(
        "/api/v1/budgets/all", json={"usd": 1, "period": "day"}, headers=headers
    )
    assert everywhere.status_code == 403
    assert (await harness.client.put("/api/v1/budgets/new", json=own, headers=headers)).status_code == 201
    assert (await harness.client.delete("/api/v1/budgets/new", headers=headers)).status_code == 204


async def test_names_budgets_and_what_if_answers_are_of_a_project(harness: Harness) -> None:
    _, names = await two_tenants(harness)
    await what_if_answers_are_for_those_who_see_the_same(harness, names)
    await one_name_is_two_jobs(harness, names)
    await budgets_are_set_by_admins_of_their_project(harness, names)


async def what_if_answers_are_for_those_who_see_the_same(harness: Harness, names: Names) -> None:
    headers = bearer(names[MINE]["token"])
    foreign = {"changes": [{"change": "drop_job", "job": f"{THEIRS}-waits"}]}
    by_id = {"changes": [{"change": "drop_job", "job": names[THEIRS]["waits"]}]}
    added = {"changes": [{"change": "add_job", "spec": {"name": "x", "run": "x", "project": THEIRS}}]}
    for question in (foreign, by_id, added):
        assert (
            await harness.client.post("/api/v1/simulations", json=question, headers=headers)
        ).status_code == 422
    while await run_next(harness.service.database, Naming(), usd_per_slot_h={}, now=harness.clock.now):
        pass
    seen = await harness.client.get(f"/api/v1/simulations/{names[MINE]['simulation_id']}", headers=headers)
    assert seen.json()["status"] == "done", seen.text
    assert {one["name"] for one in seen.json()["result"]["jobs"]} == {
        "azure-runs",
        "azure-waits",
        "azure-sweep-1",
        "shared-name",
    }
    assert THEIRS not in seen.text
    other = f"/api/v1/simulations/{names[THEIRS]['simulation_id']}"
    assert (await harness.client.post(f"{other}/cancel", headers=headers)).status_code == 404
    assert (await harness.client.get(other)).status_code == 200


async def test_metrics_are_for_monitoring_and_for_viewers(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    http = HttpSettings(metrics_token="of-monitoring")
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage", http=http)
    async with harness_of(settings) as harness:
        for headers, status in (
            ({"Authorization": ""}, 401),
            (bearer("of-nobody"), 401),
            ({}, 200),
            (bearer("of-monitoring"), 200),
        ):
            answer = await harness.client.get("/metrics", headers=headers)
            assert answer.status_code == status


async def test_metrics_may_be_public(database_url: str, redis_url: str, tmp_path: Path) -> None:
    http = HttpSettings(metrics_public=True)
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage", http=http)
    async with harness_of(settings) as harness:
        assert (await harness.client.get("/metrics", headers={"Authorization": ""})).status_code == 200
