"""Links that sign a browser in: they work once, for two minutes, for what their token may, and leave a trace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
from sqlalchemy import text

from headway.contract.views.identity import SignInLink
from service.domain.identity.sign_in import LINK
from tests.integration.service.browser import Form, browsing
from tests.integration.service.conftest import Harness

SAME = {"Sec-Fetch-Site": "same-origin"}


async def link_of(harness: Harness, token: str | None = None) -> SignInLink:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await harness.client.post("/api/v1/sign-in/links", headers=headers)
    assert answer.status_code == 201, answer.text
    return SignInLink.model_validate_json(answer.content)


def code_of(link: SignInLink) -> str:
    return parse_qs(urlsplit(link.url).query)["code"][0]


async def viewer(harness: Harness, expires_in_s: float = 600.0) -> dict[str, str]:
    wanted = {
        "name": "ci",
        "robot": True,
        "role": "viewer",
        "project": "default",
        "expires_in_s": expires_in_s,
    }
    return dict((await harness.post("tokens", wanted)).json())


async def use(service: httpx.AsyncClient, link: SignInLink) -> httpx.Response:
    return await service.post("/auth/link", data={"code": code_of(link)}, headers=SAME)


async def test_a_link_signs_one_browser_in_once_after_a_click(harness: Harness) -> None:
    link = await link_of(harness)
    assert link.url.startswith("/auth/link?code=hw_")
    async with browsing(harness) as browser:
        page = await browser.service.get(link.url)
        assert Form(page.text).fields == {"code": code_of(link)}
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401  # looking is not using
        assert (await use(browser.service, link)).headers["location"] == "/"
        assert (await browser.service.get("/api/v1/whoami")).json()["roles"] == {"*": "admin"}
    async with browsing(harness) as other:
        assert (await use(other.service, link)).status_code == 401
        assert (await other.service.get("/api/v1/whoami")).status_code == 401


async def test_of_two_browsers_at_once_one_comes_in(harness: Harness) -> None:
    link = await link_of(harness)
    async with browsing(harness) as one, browsing(harness) as other:
        answers = await asyncio.gather(use(one.service, link), use(other.service, link))
    assert sorted(answer.status_code for answer in answers) == [303, 401]


async def test_the_code_is_no_token_and_is_stored_as_a_digest(harness: Harness) -> None:
    link = await link_of(harness)
    headers = {"Authorization": f"Bearer {code_of(link)}"}
    assert (await harness.client.get("/api/v1/whoami", headers=headers)).status_code == 401
    async with harness.service.database.engine.begin() as connection:
        stored = (await connection.execute(text("SELECT tokens::text FROM tokens"))).scalars().all()
    assert stored
    assert not [row for row in stored if code_of(link) in row]


async def test_a_link_may_what_its_token_may_and_ends_with_it(harness: Harness) -> None:
    made = await viewer(harness)
    used, unused = [await link_of(harness, made["token"]) for _ in range(2)]
    async with browsing(harness) as browser:
        answer = await use(browser.service, used)
        assert int(answer.headers["set-cookie"].split("Max-Age=")[1].split(";")[0]) <= 600
        assert (await browser.service.get("/api/v1/whoami")).json()["roles"] == {"default": "viewer"}
        await harness.client.delete(f"/api/v1/tokens/{made['id']}")
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401
        assert (await use(browser.service, unused)).status_code == 401


async def test_a_link_expires(harness: Harness) -> None:
    link = await link_of(harness)
    assert timedelta() < link.expires_at - datetime.now(UTC) <= LINK
    async with harness.service.database.engine.begin() as connection:
        await connection.execute(text("UPDATE tokens SET expires_at = now() - interval '1 second'"))
    async with browsing(harness) as browser:
        assert (await use(browser.service, link)).status_code == 401


async def test_pages_of_others_sign_nobody_in_and_nobody_makes_links_without_a_token(
    harness: Harness,
) -> None:
    link = await link_of(harness)
    async with browsing(harness) as browser:
        cross = {"Sec-Fetch-Site": "cross-site"}
        answer = await browser.service.post("/auth/link", data={"code": code_of(link)}, headers=cross)
        assert answer.status_code == 403
        assert (await browser.service.post("/api/v1/sign-in/links", headers=SAME)).status_code == 401
        assert (await use(browser.service, link)).status_code == 303


async def test_making_using_and_trying_a_link_is_audited(harness: Harness) -> None:
    link = await link_of(harness)
    async with browsing(harness) as browser:
        await use(browser.service, link)
        await use(browser.service, link)
    items = (await harness.client.get("/api/v1/audit")).json()["items"]
    told = [(one["action"], one["target"], one["status"], one["actor"]) for one in reversed(items)]
    assert told == [
        ("create_sign_in_link", "/api/v1/sign-in/links", 201, "admin"),
        ("login_with_link", "/auth/link", 200, "admin"),
        ("login_with_link", "/auth/link", 401, "unknown"),
    ]
    assert code_of(link) not in str(items)
