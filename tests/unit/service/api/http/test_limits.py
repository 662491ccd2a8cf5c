"""Nobody gets more than their share, and nobody else's share gets smaller by that."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from service.api.http import limits
from service.api.http.auditing import PRINCIPAL
from service.api.http.limits import AT_ONCE, JSON_BYTES, Rates, RequestLimits
from service.domain.identity.rates import Bucket, Rate
from tests.waiting import until

RATE = Rate(per_s=10.0, burst=50.0)


@given(st.lists(st.tuples(st.floats(-5, 60), st.floats(0, 3)), max_size=60))
def test_no_more_is_taken_than_flows_in(steps: list[tuple[float, float]]) -> None:
    bucket, now_s, begun, taken = Bucket(RATE.burst, 0.0), 0.0, 0.0, 0.0
    latest = 0.0
    for passed_s, cost in steps:
        now_s += passed_s
        latest = max(latest, now_s)
        wait_s = bucket.take(RATE, now_s, cost)
        taken += cost if wait_s == 0.0 else 0.0
        assert 0.0 <= bucket.left <= RATE.burst
        assert taken <= RATE.burst + RATE.per_s * (latest - begun) + 1e-6
        if wait_s > 0.0:
            assert bucket.take(RATE, latest + wait_s + 1e-6, 0.0) == 0.0
            latest = now_s = latest + wait_s + 1e-6


@given(st.floats(0, 1e9))
def test_a_debt_is_paid_back_within_two_bursts(cost: float) -> None:
    bucket = Bucket(RATE.burst, 0.0)
    bucket.charge(RATE, 0.0, cost)
    assert bucket.left >= -RATE.burst
    assert bucket.take(RATE, 2 * RATE.burst / RATE.per_s, 1.0) == 0.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0


class World:
    """An application that knows the tokens `good...`, behind the limits."""

    def __init__(self, rate_per_s: float = 10.0) -> None:
        self.clock = Clock()
        self.rates = Rates(rate_per_s, lambda: self.clock.now_s)
        self.inside = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.inside += 1
        await self.go_on.wait()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        cookie = request.cookies.get("headway", "")
        if not (token or cookie).startswith("good") and not scope["path"].startswith("/open"):
            await Response(status_code=401)(scope, receive, send)
            return
        if not scope["path"].startswith(("/open", "/api/v1/agents")):
            scope[PRINCIPAL] = "somebody"
        size = len(await request.body())
        await JSONResponse({"bytes": size})(scope, receive, send)

    def client(self, address: str = "10.0.0.1", **more: Any) -> httpx.AsyncClient:
        app = RequestLimits(self, max_bundle_bytes=1 << 21, rates=self.rates, **more)
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://headway")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def statuses(
    client: httpx.AsyncClient, count: int, headers: dict[str, str], path: str = "/x"
) -> list[int]:
    return [(await client.get(path, headers=headers)).status_code for _ in range(count)]


async def test_a_token_has_its_own_share() -> None:
    world = World()
    async with world.client() as client:
        answers = await statuses(client, 80, bearer("good1"))
        assert answers[:50] == [200] * 50  # the first one was let in to be looked at
        assert answers[-1] == 429
        assert await statuses(client, 20, bearer("good2")) == [200] * 20
        refused = await client.get("/x", headers=bearer("good1"))
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["code"] == "too_busy"
        assert {name: refused.headers[name] for name in ("ratelimit-limit", "ratelimit-remaining")} == {
            "ratelimit-limit": "50",
            "ratelimit-remaining": "0",
        }
        world.clock.now_s += int(refused.headers["retry-after"])
        assert await statuses(client, 1, bearer("good1")) == [200]


async def test_guessing_tokens_is_slow_and_disturbs_nobody_who_is_known() -> None:
    world = World()
    async with world.client() as client, world.client("10.0.0.2") as elsewhere:
        await statuses(client, 1, bearer("good"))
        answers = [(await client.get("/x", headers=bearer(f"guess{n}"))).status_code for n in range(100)]
        assert answers.count(401) <= 3  # five points each, of a burst of five
        assert set(answers) == {401, 429}
        assert await statuses(client, 20, bearer("good")) == [200] * 20
        assert await statuses(elsewhere, 1, bearer("good2")) == [200]
        world.clock.now_s += 100.0
        assert (await client.get("/x", headers=bearer("guess"))).status_code == 401


async def test_many_agents_behind_one_address_come_back_at_once() -> None:
    """After a restart nobody is known: whoever has a good token costs the address nothing."""
    world = World()
    async with world.client() as client:
        answers = [
            (await client.post("/api/v1/agents/n/reports", headers=bearer(f"good{n}"))).status_code
            for n in range(500)
        ]
    assert answers == [200] * 500


async def test_whoever_shows_nothing_is_counted_by_address_whatever_they_make_up() -> None:
    world = World()
    async with world.client() as client:
        assert 429 in await statuses(client, 10, {}, "/open")
    async with world.client("10.0.0.3") as client:
        made_up = [(await client.get("/open", headers=bearer(f"x{n}"))).status_code for n in range(40)]
        assert made_up.count(200) <= 11  # down to the deepest debt
    async with world.client("10.0.0.4") as client:
        junk = [
            (await client.get("/x", headers={"Cookie": f"headway=good; a={n}"})).status_code
            for n in range(80)
        ]
        assert junk.count(200) <= 51
        assert (
            await statuses(client, 100, {}, "/livez") == [401] * 100
        )  # as the application says: never limited


async def test_a_token_that_is_none_any_more_is_forgotten() -> None:
    world = World()
    async with world.client() as client:
        await statuses(client, 1, bearer("good"))
        digest = next(iter(world.rates._tokens))
        world.rates.answered(digest, "10.0.0.1", agent=False, known=False, refused=True, received_bytes=0)
        assert digest not in world.rates._tokens


async def test_an_agent_waits_for_its_answers_and_pays_for_what_it_sends() -> None:
    world = World()
    path = "/api/v1/agents/n/reports"
    async with world.client() as client:
        assert (await client.post(path, headers=bearer("good"))).status_code == 200
        world.go_on.clear()
        before = world.inside
        asked = [asyncio.create_task(client.post(path, headers=bearer("good"))) for _ in range(AT_ONCE)]
        await until(lambda: world.inside == before + AT_ONCE)
        assert (await client.post(path, headers=bearer("good"))).status_code == 429
        world.go_on.set()
        assert [(await one).status_code for one in asked] == [200] * AT_ONCE
        world.clock.now_s += 100.0
        assert (await client.post(path, headers=bearer("good"), content=bytes(2 << 20))).status_code == 200
        assert (await client.post(path, headers=bearer("good"))).status_code == 429
        assert (await client.post(path, headers=bearer("good2"))).status_code == 200


@pytest.mark.parametrize(
    ("path", "most"),
    [("/api/v1/jobs", JSON_BYTES), ("/auth/login", JSON_BYTES), ("/api/v1/bundles", (1 << 21) + (1 << 16))],
)
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(path: str, most: int) -> None:
    world = World()
    async with world.client() as client:
        told = await client.post(
            path, headers={**bearer("good"), "Content-Length": str(most + 1)}, content=b""
        )
        assert (told.status_code, told.json()["code"]) == (413, "too_large")
        assert told.headers["connection"] == "close"
        assert world.inside == 0
        fits = await client.post(path, headers=bearer("good"), content=bytes(most))
        assert fits.json() == {"bytes": most}


def piece(size: int, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": bytes(size), "more_body": more}


async def test_a_body_of_unknown_length_is_cut_off_at_its_limit() -> None:
    answers = [piece(60), piece(60), piece(60)]

    async def receive() -> Any:
        return answers.pop(0)

    body = limits._Body(receive, 100)
    await body.receive()
    with pytest.raises(HTTPException, match="100 bytes at most") as caught:
        await body.receive()
    assert (caught.value.status_code, len(answers)) == (413, 1)


def test_what_is_remembered_has_an_end() -> None:
    rates = Rates(10.0, lambda: 0.0)
    for number in range(50_100):
        token = number.to_bytes(8, "big")
        rates.answered(token, "a", agent=False, known=True, refused=False, received_bytes=0)
    assert len(rates._tokens) == 50_000
