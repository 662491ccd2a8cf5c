"""Tokens, people and projects over HTTP: who may do what, at once, on every replica."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from headway.contract.views.identity import TOKEN_PATTERN, TokenRequest
from service.domain.identity.access import Principal
from service.main import Service
from service.usecases.identity.tokens import make_token, new_token
from service.usecases.ports.facts import WakeUp
from tests.integration.service.conftest import Harness
from tests.waiting import until


@asynccontextmanager
async def client_of(harness: Harness, token: str, app: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app) if app is not None else harness.client._transport
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://headway", headers=headers) as client:
        yield client


async def expect(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json() if response.content else {}
    if code is not None:
        assert body["code"] == code, body
    return body


class People:
    """Makes people and tokens as an admin, and clients of theirs."""

    def __init__(self, harness: Harness, stack: AsyncExitStack) -> None:
        self.harness = harness
        self.admin = harness.client
        self._stack = stack

    async def client(self, token: str) -> httpx.AsyncClient:
        return await self._stack.enter_async_context(client_of(self.harness, token))

    async def token_of(self, name: str) -> str:
        """A token of a user: made in the rows, as a sign-in does."""
        now = self.harness.clock.now()
        async with self.harness.service.database.begin() as tx:
            user = await tx.users.lock(name)
            maker = Principal(name=name, user_id=user.id)
            wanted = TokenRequest(name="sign-in")
            token_id = secrets.token_hex(8)
            made = await make_token(tx, maker, wanted, token_id=token_id, token=new_token(), now=now)
        return made.token

    async def add(self, name: str, role: str | None = None, **projects: str) -> httpx.AsyncClient:
        """A user with a role everywhere and roles in projects, which are made if need be."""
        await expect(await self.admin.post("/api/v1/users", json={"name": name, "role": role}), 201)
        for project, its_role in projects.items():
            await self.admin.put(f"/api/v1/projects/{project}", json={})
            path = f"/api/v1/projects/{project}/members/{name}"
            await expect(await self.admin.put(path, json={"role": its_role}), 200)
        return await self.client(await self.token_of(name))


@pytest.fixture
async def people(harness: Harness) -> AsyncIterator[People]:
    await harness.service.clock.look()
    async with AsyncExitStack() as stack:
        yield People(harness, stack)


async def me(client: httpx.AsyncClient) -> dict[str, Any]:
    return await expect(await client.get("/api/v1/whoami"), 200)


async def test_whoami_tells_what_the_token_may(people: People) -> None:
    alice = await people.add("alice", red="user")
    assert (await me(people.admin))["roles"] == {"*": "admin"}
    found = await me(alice)
    assert (found["name"], found["roles"]) == ("alice", {"red": "user"})
    assert found["expires_at"] is not None
    nobody = await people.add("nobody")
    assert (await me(nobody))["roles"] == {}, "who may nothing may know that"


async def test_a_token_is_made_narrower_and_shown_once(people: People) -> None:
    alice = await people.add("alice", red="admin", blue="user")
    wanted = {"name": "ci", "role": "viewer", "project": "red", "expires_in_s": 60}
    made = await expect(await alice.post("/api/v1/tokens", json=wanted), 201)
    assert re.fullmatch(TOKEN_PATTERN, made["token"])
    narrow = await people.client(made["token"])
    assert (await me(narrow))["roles"] == {"red": "viewer"}
    again = await expect(await narrow.post("/api/v1/tokens", json={"name": "more", "role": "admin"}), 201)
    assert (await me(await people.client(again["token"])))["roles"] == {"red": "viewer"}
    assert again["expires_at"] == made["expires_at"], "a token outlives the one that it was made with"
    await expect(await narrow.post("/api/v1/tokens", json={"name": "b", "project": "blue"}), 404)
    listed = await alice.get("/api/v1/tokens")
    assert made["token"] not in listed.text
    assert {one["name"] for one in listed.json()["items"]} == {"sign-in", "ci", "more"}


async def test_robots_are_made_by_the_admins_of_their_project(people: People) -> None:
    alice = await people.add("alice", red="admin")
    bob = await people.add("bob", red="user")
    robot = {"name": "ci", "robot": True, "role": "user", "project": "red"}
    await expect(await bob.post("/api/v1/tokens", json=robot), 403, "forbidden")
    await expect(await alice.post("/api/v1/tokens", json={**robot, "project": "*"}), 403)
    await expect(await alice.post("/api/v1/tokens", json={**robot, "project": "blue"}), 404)
    await expect(await people.admin.post("/api/v1/tokens", json={**robot, "project": "blue"}), 404)
    await expect(await alice.post("/api/v1/tokens", json={**robot, "role": None}), 422)
    await expect(await people.admin.post("/api/v1/tokens", json={"name": "own"}), 422)
    made = await expect(await alice.post("/api/v1/tokens", json=robot), 201)
    assert (made["user"], made["created_by"]) == (None, "alice")
    ci = await people.client(made["token"])
    assert (await me(ci))["name"] == "robot ci"
    job = {"name": "job", "run": "python -V", "project": "red"}
    await expect(await ci.post("/api/v1/jobs", json=job), 201)
    await expect(await ci.post("/api/v1/jobs", json={**job, "project": "default"}), 404)
    assert made["id"] not in (await bob.get("/api/v1/tokens")).text
    await expect(await bob.delete(f"/api/v1/tokens/{made['id']}"), 404)
    assert (await alice.delete(f"/api/v1/tokens/{made['id']}")).status_code == 204
    await expect(await ci.get("/api/v1/whoami"), 401, "wrong_token")


async def test_who_revokes_a_token_ends_what_was_made_with_it(people: People) -> None:
    alice = await people.add("alice", red="admin")
    first = await expect(await alice.post("/api/v1/tokens", json={"name": "laptop"}), 201)
    laptop = await people.client(first["token"])
    robot = {"name": "ci", "robot": True, "role": "user", "project": "red"}
    second = await expect(await laptop.post("/api/v1/tokens", json=robot), 201)
    third = await expect(await laptop.post("/api/v1/tokens", json={"name": "stolen"}), 201)
    fourth = await expect(
        await (await people.client(third["token"])).post("/api/v1/tokens", json={"name": "hidden"}), 201
    )
    assert (second["made_with"], fourth["made_with"]) == (first["id"], third["id"])
    listed = (await alice.get("/api/v1/tokens")).json()["items"]
    assert {one["id"]: one["made_with"] for one in listed}[fourth["id"]] == third["id"]

    assert (await laptop.delete(f"/api/v1/tokens/{third['id']}")).status_code == 204
    for gone in (third, fourth):
        await expect(await (await people.client(gone["token"])).get("/api/v1/whoami"), 401)
    ci = await people.client(second["token"])
    await me(ci)
    assert (await laptop.delete(f"/api/v1/tokens/{first['id']}")).status_code == 204
    await expect(await laptop.get("/api/v1/whoami"), 401)
    await me(ci)  # who is done with a token leaves the robots that it made
    await expect(await alice.delete(f"/api/v1/tokens/{first['id']}"), 204)
    await expect(await ci.get("/api/v1/whoami"), 401)


async def test_a_token_asked_for_twice_is_one_and_its_answer_works(people: People) -> None:
    alice = await people.add("alice", red="user")
    bob = await people.add("bob", red="user")
    key = {"Idempotency-Key": "k"}
    lost = await expect(await alice.post("/api/v1/tokens", json={"name": "ci"}, headers=key), 201)
    got = await expect(await alice.post("/api/v1/tokens", json={"name": "ci"}, headers=key), 201)
    assert lost["id"] == got["id"]
    await expect(await (await people.client(lost["token"])).get("/api/v1/whoami"), 401)
    assert (await me(await people.client(got["token"])))["name"] == "alice"
    other = await alice.post("/api/v1/tokens", json={"name": "another"}, headers=key)
    await expect(other, 422, "idempotency_conflict")
    theirs = await expect(await bob.post("/api/v1/tokens", json={"name": "ci"}, headers=key), 201)
    assert theirs["id"] != got["id"]


async def test_who_may_less_may_less_at_once(people: People) -> None:
    alice = await people.add("alice", red="user")
    job = {"name": "job", "run": "python -V", "project": "red"}
    await expect(await alice.post("/api/v1/jobs", json=job), 201)
    await people.admin.put("/api/v1/projects/red/members/alice", json={"role": "viewer"})
    await expect(await alice.post("/api/v1/jobs/job/cancel"), 403, "forbidden")
    assert (await people.admin.delete("/api/v1/projects/red/members/alice")).status_code == 204
    await expect(await alice.get("/api/v1/jobs/job"), 403, "forbidden")
    await expect(await people.admin.patch("/api/v1/users/alice", json={"disabled": True}), 200)
    refused = await expect(await alice.get("/api/v1/whoami"), 401)
    assert "alice is disabled" in refused["detail"]
    await expect(await people.admin.patch("/api/v1/users/alice", json={"disabled": False}), 200)
    assert (await me(alice))["roles"] == {}
    assert (await people.admin.delete("/api/v1/users/alice")).status_code == 204
    await expect(await alice.get("/api/v1/whoami"), 401)


async def test_an_expired_token_says_so(people: People) -> None:
    alice = await people.add("alice")
    async with people.harness.service.database.begin() as tx:
        await tx.tokens._session.execute(  # type: ignore[attr-defined]
            text("UPDATE tokens SET expires_at = now() - interval '1 second'")
        )
    refused = await expect(await alice.get("/api/v1/whoami"), 401)
    assert "has expired" in refused["detail"]


async def test_another_replica_hears_of_a_revocation(people: People) -> None:
    harness = people.harness
    alice = await people.add("alice")
    token = alice.headers["Authorization"].removeprefix("Bearer ")
    other = Service(harness.service.settings)
    app = other.app()
    identities = app.state.identities
    async with app.router.lifespan_context(app), client_of(harness, token, app) as there:

        async def listens() -> bool:
            before = identities._forgotten
            await harness.service.wake_ups.wake(WakeUp.ACCESS)
            await asyncio.sleep(0.01)
            return bool(identities._forgotten > before)

        await until(listens)
        token_id = (await me(there))["token_id"]

        async def remembers() -> bool:  # once the last of these wake-ups is over
            await me(there)
            return bool(identities._known)

        await until(remembers)
        assert (await alice.delete(f"/api/v1/tokens/{token_id}")).status_code == 204
        await until(lambda: not identities._known)
        await expect(await there.get("/api/v1/whoami"), 401, "wrong_token")
    await other.close()


async def test_uses_of_tokens_are_shown(people: People) -> None:
    alice = await people.add("alice")
    await me(alice)
    identities = people.harness.service._identities
    assert identities is not None
    await identities.write_uses()
    (token,) = (await alice.get("/api/v1/tokens")).json()["items"]
    assert token["last_used_at"] is not None
    users = (await people.admin.get("/api/v1/users")).json()["items"]
    assert [(one["name"], one["last_seen_at"] is not None) for one in users] == [("alice", True)]


async def test_people_are_looked_after_by_admins_everywhere(people: People) -> None:
    alice = await people.add("alice", "admin")
    bob = await people.add("bob", "operator", red="admin")
    for method, path in [("GET", ""), ("POST", ""), ("PATCH", "/alice"), ("DELETE", "/alice")]:
        answer = await bob.request(method, f"/api/v1/users{path}", json={"name": "eve"})
        await expect(answer, 403, "forbidden")
    await expect(await alice.post("/api/v1/users", json={"name": "carol", "role": "user"}), 201)
    await expect(await alice.post("/api/v1/users", json={"name": "carol", "role": "user"}), 200)
    await expect(await alice.post("/api/v1/users", json={"name": "carol"}), 409, "name_taken")
    for name in ("", "a b", "a/b", "admin", "x" * 300):
        await expect(await alice.post("/api/v1/users", json={"name": name}), 422, "invalid_field")
    await expect(await alice.patch("/api/v1/users/dave", json={"disabled": True}), 404)
    changed = await expect(await alice.patch("/api/v1/users/carol", json={"role": "viewer"}), 200)
    assert (changed["roles"], changed["disabled_at"]) == ({"*": "viewer"}, None)
    changed = await expect(await alice.patch("/api/v1/users/carol", json={"role": None}), 200)
    assert changed["roles"] == {}


async def test_the_last_admin_stays(people: People) -> None:
    alice = await people.add("alice", "admin")
    for answer in (
        await alice.delete("/api/v1/users/alice"),
        await alice.patch("/api/v1/users/alice", json={"disabled": True}),
        await alice.patch("/api/v1/users/alice", json={"role": "user"}),
        await people.admin.delete("/api/v1/users/alice"),
    ):
        assert "headway user add" in (await expect(answer, 409, "last_admin"))["detail"]
    await expect(await alice.patch("/api/v1/users/alice", json={"role": "admin"}), 200)
    await people.add("bob", "admin")
    assert (await alice.delete("/api/v1/users/alice")).status_code == 204


async def test_two_admins_who_remove_each_other_leave_one(people: People) -> None:
    alice, bob = await people.add("alice", "admin"), await people.add("bob", "admin")
    answers = await asyncio.gather(alice.delete("/api/v1/users/bob"), bob.delete("/api/v1/users/alice"))
    assert sorted(one.status_code for one in answers) in ([204, 401], [204, 403], [204, 404], [204, 409])
    left = (await people.admin.get("/api/v1/users")).json()["items"]
    assert len(left) == 1


async def test_projects_are_made_and_changed(people: People) -> None:
    admin = people.admin
    made = await admin.put("/api/v1/projects/red", json={"description": "d"}, headers={"If-None-Match": "*"})
    await expect(made, 201)
    twice = await admin.put("/api/v1/projects/red", json={}, headers={"If-None-Match": "*"})
    await expect(twice, 412, "changed")
    once_more = await admin.put(
        "/api/v1/projects/red", json={"description": "d"}, headers={"If-None-Match": "*"}
    )
    await expect(once_more, 200)
    for given in ("*", '"0"'):
        none = await admin.put("/api/v1/projects/none", json={}, headers={"If-Match": given})
        await expect(none, 404, "not_found")
    tag = {"If-Match": made.headers["ETag"]}
    quota = {"slots": 4, "max_slots": 8, "usd_per_month": 10.0, "weight": 2.0}
    changed = await admin.put("/api/v1/projects/red", json={"quota": quota}, headers=tag)
    body = await expect(changed, 200)
    assert (body["description"], body["quota"], body["slots_held"]) == ("", quota, 0)
    await expect(await admin.put("/api/v1/projects/red", json={}, headers=tag), 412, "changed")
    same = await admin.get("/api/v1/projects/red")
    assert same.headers["ETag"] == changed.headers["ETag"] != made.headers["ETag"]
    for name, wanted in [
        ("Not A Name", {}),
        ("red", {"quota": {"slots": -1}}),
        ("red", {"quota": {"weight": 0}}),
        ("red", {"colour": "red"}),
        ("red", {"description": "x" * 501}),
    ]:
        await expect(await admin.put(f"/api/v1/projects/{name}", json=wanted), 422, "invalid_field")
    assert (await admin.delete("/api/v1/projects/red")).status_code == 204
    await expect(await admin.delete("/api/v1/projects/red"), 404)
    await expect(await admin.get("/api/v1/projects/red"), 404, "not_found")


async def test_a_project_is_there_for_its_members_alone(people: People) -> None:
    alice = await people.add("alice", red="admin")
    bob = await people.add("bob", blue="viewer")
    assert [one["name"] for one in (await alice.get("/api/v1/projects")).json()["items"]] == ["red"]
    assert (await expect(await alice.get("/api/v1/projects/red"), 200))["members"] == {"alice": "admin"}
    none = await expect(await alice.get("/api/v1/projects/none"), 404)
    for method, path, body in [
        ("GET", "", None),
        ("PUT", "", {}),
        ("PUT", "/members/alice", {"role": "user"}),
        ("DELETE", "/members/bob", None),
    ]:
        answer = await alice.request(method, f"/api/v1/projects/blue{path}", json=body)
        hidden = await expect(answer, 404, "not_found")
        assert hidden["detail"].replace("blue", "none") == none["detail"], "as one that does not exist"
    await expect(await alice.put("/api/v1/projects/new", json={}), 404)
    await expect(await alice.delete("/api/v1/projects/red"), 403)
    await expect(await alice.put("/api/v1/projects/red", json={"description": "mine"}), 200)
    greedy = await alice.put("/api/v1/projects/red", json={"quota": {"slots": 100}})
    assert "admin of the whole cluster" in (await expect(greedy, 403, "forbidden"))["detail"]
    view = await expect(await alice.put("/api/v1/projects/red/members/bob", json={"role": "user"}), 200)
    assert view["members"] == {"alice": "admin", "bob": "user"}
    await expect(await bob.put("/api/v1/projects/red/members/bob", json={"role": "admin"}), 403)
    await expect(await alice.put("/api/v1/projects/red/members/eve", json={"role": "user"}), 404)
    assert (await alice.delete("/api/v1/projects/red/members/bob")).status_code == 204
    await expect(await alice.delete("/api/v1/projects/red/members/bob"), 404)
    await expect(await bob.get("/api/v1/projects/red"), 404)


async def test_a_project_in_use_stays(people: People) -> None:
    harness = people.harness
    await people.admin.put("/api/v1/projects/red", json={})
    await harness.submit("train", project="red")
    budget = {"usd": 1, "period": "day", "project": "red"}
    await expect(await people.admin.put("/api/v1/budgets/cap", json=budget), 201)
    refused = await expect(await people.admin.delete("/api/v1/projects/red"), 409, "in_use")
    assert "budget cap, job train" in refused["detail"]
    unknown = await harness.post("jobs", {"name": "j", "run": "x", "project": "nowhere"})
    assert "headway project create nowhere" in (await expect(unknown, 422, "invalid_field"))["detail"]


async def test_what_a_project_holds_is_counted(people: People) -> None:
    harness = people.harness
    await people.admin.put("/api/v1/projects/red", json={})
    await harness.join(slots=2)
    await harness.submit("train", project="red", elastic={"min": 2, "max": 2})
    await harness.turn()
    view = await expect(await people.admin.get("/api/v1/projects/red"), 200)
    assert view["slots_held"] == 2


async def test_a_token_lives_for_a_time_that_makes_sense(people: People) -> None:
    robot = {"name": "ci", "robot": True, "role": "user", "expires_in_s": 60}
    made = await expect(await people.admin.post("/api/v1/tokens", json=robot), 201)
    listed = (await people.admin.get("/api/v1/tokens")).json()["items"]
    assert [one["id"] for one in listed] == [made["id"]]
    for lifetime in (0, -1, 367 * 86_400, "NaN"):
        answer = await people.admin.post("/api/v1/tokens", json={**robot, "expires_in_s": lifetime})
        await expect(answer, 422, "invalid_field")
