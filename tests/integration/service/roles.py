"""People and programs with every role, and a request for every operation of the API's description, about project `red`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from headway.contract.views.identity import Role
from service.api.http.access import Reach
from service.api.http.document import examples
from tests.integration.service.conftest import Agent, Harness

EVERYWHERE = "*"
PLACES = ("red", "blue", EVERYWHERE)
OPEN = frozenset({"livez", "readyz", "version", "metrics", "get_sign_in", "sign_in"})
"""Whoever reaches the service may ask these."""
OF_AGENTS = frozenset(
    {
        "join",
        "report",
        "fetch_secrets",
        "append_log",
        "report_execution",
        "renew_credentials",
        "storage_access",
        "sign_storage",
        "has_bundle",
        "download_bundle",
    }
)
"""These have rules of their own: a node may speak for itself alone."""
_IN_BODY = frozenset({"submit_job", "submit_sweep", "create_token"})
"""Operations that name their project in the body."""
_ABOUT_A_PROJECT = ("{job}", "{sweep}", "/projects/{", "/budgets/{")


@dataclass(frozen=True)
class Operation:
    id: str
    method: str
    path: str
    role: str | None
    reach: str | None
    body: Any = None

    @property
    def about_red(self) -> bool:
        return self.id in _IN_BODY or any(part in self.path for part in _ABOUT_A_PROJECT)


@dataclass(frozen=True)
class Somebody:
    """Whoever has `role` in `project`; without a role, a token that is not (or no more) valid."""

    name: str
    token: str | None
    role: Role | None = None
    project: str = ""

    def may(self, operation: Operation) -> bool:
        """Return whether the API's description allows the operation."""
        if self.role is None:
            return False
        if operation.role == "any":
            return True
        enough = self.is_enough_for(operation)
        if operation.reach == Reach.EVERYWHERE:
            return enough and self.project == EVERYWHERE
        return enough and (not operation.about_red or self.project in {"red", EVERYWHERE})

    def is_enough_for(self, operation: Operation) -> bool:
        """Return whether the role is sufficient where it holds."""
        order = [*Role]
        return self.role is not None and order.index(self.role) >= order.index(Role(operation.role or ""))


@dataclass
class Cast:
    """Somebody with each role in each place, and those whom nobody knows."""

    known: list[Somebody] = field(default_factory=list)
    unknown: list[Somebody] = field(default_factory=list)


async def prepare(harness: Harness) -> tuple[Cast, list[Operation], Agent]:
    """Two projects with a job and a budget each, tokens of every kind, and what can be asked."""
    for project in ("red", "blue"):
        (await harness.client.put(f"/api/v1/projects/{project}", json={})).raise_for_status()
        await harness.submit(f"{project}-job", project=project)
        await harness.submit_sweep(f"{project}-sweep", {"lr": [0.1, 0.2]}, project=project)
        budget = {"usd": 500, "period": "month", "project": project}
        (await harness.client.put(f"/api/v1/budgets/{project}-cap", json=budget)).raise_for_status()
    agent = await harness.join()
    cast = Cast()
    for project in PLACES:
        for role in Role:
            token = (await robot(harness, role, project)).json()
            cast.known.append(Somebody(f"{role} in {project}", token["token"], role, project))
    revoked = (await robot(harness, Role.ADMIN, EVERYWHERE)).json()
    (await harness.client.delete(f"/api/v1/tokens/{revoked['id']}")).raise_for_status()
    cast.unknown += [
        Somebody("nobody", None),
        Somebody("forged", "hw_" + "A" * 43),
        Somebody("empty", ""),
        Somebody("revoked", revoked["token"]),
        Somebody("a node", agent.joined.node_token),
        Somebody("joining", "join-token"),
    ]
    document = (await harness.client.get("/openapi.json")).json()
    return cast, operations_of(document, agent.joined.node_id), agent


async def robot(harness: Harness, role: Role, project: str, expires_in_s: float = 3600.0) -> httpx.Response:
    wanted = {"name": "r", "robot": True, "role": role, "project": project, "expires_in_s": expires_in_s}
    made = await harness.client.post("/api/v1/tokens", json=wanted)
    made.raise_for_status()
    return made


def operations_of(document: dict[str, Any], node_id: str) -> list[Operation]:
    """The operations that an API's description has."""
    return [
        Operation(
            id=one["operationId"],
            method=method.upper(),
            path=path,
            role=one.get("x-headway-role"),
            reach=one.get("x-headway-reach"),
            body=_body(one["operationId"], node_id),
        )
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    ]


def _body(operation: str, node_id: str) -> Any:
    if operation == "set_secret":
        return {"value": "a secret"}
    if operation == "set_project":
        return {"description": "of the project's own admin: quotas are not theirs"}
    body = examples().get(operation, {}).get("request")
    if isinstance(body, dict) and operation in {"submit_job", "submit_sweep", "set_budget"}:
        body = {**body, "project": "red"}
    return body


def path_of(operation: Operation, node_id: str) -> str:
    """The path with the names of what there is in `red`."""
    names = {
        "job": "red-job",
        "sweep": "red-sweep",
        "project": "red",
        "name": "red" if "/projects/{name}" in operation.path else "red-cap",
        "node": "alpha",
        "slot": "0",
        "node_id": node_id,
        "job_id": "j00000000",
        "generation": "1",
        "rank": "0",
        "user": "ada@example.org",
        "round_id": "latest",
        "simulation_id": "s1",
        "token_id": "t1",
        "execution": "x1",
        "execution_id": "x1",
        "digest": "sha256:" + "0" * 64,
    }
    path = operation.path
    for name, value in names.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, f"{operation.id}: what stands for its parameter is not known here"
    return path


async def ask(harness: Harness, operation: Operation, who: Somebody, node_id: str) -> httpx.Response:
    headers = {"Authorization": ""} if who.token is None else {"Authorization": f"Bearer {who.token}"}
    path = path_of(operation, node_id)
    return await harness.client.request(operation.method, path, json=operation.body, headers=headers)
