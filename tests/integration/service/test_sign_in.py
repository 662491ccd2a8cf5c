"""People sign in at a provider that follows the standard, with a browser; and what attackers would try."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio

from headway.contract.views.identity import Role
from service.domain.identity.sign_in import AdmissionRules
from service.http_settings import HttpSettings, OidcSettings
from tests.identity_providers import ADA, python_provider
from tests.integration.service.browser import URL, Browser, browsing
from tests.integration.service.conftest import TOKEN, Harness, harness_of, make_settings

CALLBACK = f"{URL}/auth/callback"
SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with python_provider() as issuer:
        yield issuer


class Rig:
    """A service that knows the provider, and how it is set."""

    def __init__(self, harness: Harness, issuer: str) -> None:
        self.harness = harness
        self.issuer = issuer

    async def add_user(self, name: str = ADA, role: Role | None = Role.USER) -> None:
        answer = await self.harness.post("users", {"name": name, **({"role": role} if role else {})})
        assert answer.status_code == 201, answer.text

    async def sign_in(
        self, browser: Browser, return_to: str = "/version", sub: str = "ada"
    ) -> httpx.Response:
        browser.sub = sub
        back = await browser.until(f"/auth/login?return_to={return_to}", CALLBACK)
        return await browser.service.get(back)


@asynccontextmanager
async def rig_of(
    database_url: str,
    redis_url: str,
    folder: Path,
    issuer: str,
    rules: AdmissionRules | None = None,
    **http: Any,
) -> AsyncIterator[Rig]:
    oidc = OidcSettings(
        issuer=issuer, client_id="headway", client_secret="s", rules=rules or AdmissionRules()
    )
    settings = make_settings(
        database_url,
        redis_url,
        f"file://{folder}/storage",
        http=HttpSettings(public_url=URL, oidc=oidc, **http),
    )
    async with harness_of(settings) as harness:
        yield Rig(harness, issuer)


@pytest_asyncio.fixture
async def rig(database_url: str, redis_url: str, tmp_path: Path, issuer: str) -> AsyncIterator[Rig]:
    async with rig_of(database_url, redis_url, tmp_path, issuer) as made:
        yield made


async def test_whoever_was_added_signs_in_is_known_again_and_signs_out(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as browser:
        answer = await rig.sign_in(browser, "/api/v1/whoami")
        assert (answer.status_code, answer.headers["location"]) == (303, "/api/v1/whoami")
        cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("headway="))
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        assert 43_200 - int(cookie.split("Max-Age=")[1].split(";")[0]) in range(300)  # a busy machine takes seconds
        me = (await browser.service.get("/api/v1/whoami")).json()
        assert (me["name"], me["roles"]) == (ADA, {"*": "user"})
        again = await rig.sign_in(browser)
        assert again.status_code == 303
        assert (await browser.service.get("/api/v1/whoami")).json()["user_id"] == me["user_id"]
        session = dict(browser.service.cookies)
        out = await browser.service.post("/auth/logout", headers=SAME)
        assert (out.status_code, out.headers["location"]) == (303, "/auth/signed-out")
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401
        browser.service.cookies.update(session)  # a copy of the cookie is of no use either
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401


async def test_with_tls_the_cookie_is_bound_to_this_host(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/s", http=HttpSettings(public_url="https://headway.test")
    )
    async with harness_of(settings) as harness, browsing(harness) as browser:
        answer = await browser.service.post("/auth/login", data={"token": TOKEN}, headers=SAME)
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith("__Host-headway=hw_")
    assert {"Secure", "Path=/", "HttpOnly"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()


async def test_nobody_comes_in_who_was_not_added(rig: Rig) -> None:
    async with browsing(rig.harness) as browser:
        answer = await rig.sign_in(browser)
        assert answer.status_code == 403
        assert f"headway user add {ADA}" in answer.text
        assert not [name for name in browser.service.cookies if name == "headway"]


async def test_an_address_that_is_not_verified_is_nobodys(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as browser:
        answer = await rig.sign_in(browser, sub="eve")
    assert answer.status_code == 403
    assert "verified" in answer.text


async def test_a_name_stays_with_the_account_that_had_it_first(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as browser:
        assert (await rig.sign_in(browser)).status_code == 303
    async with browsing(rig.harness) as browser:
        answer = await rig.sign_in(browser, sub="imitator")
    assert answer.status_code == 403
    assert "another account" in answer.text


async def test_who_is_disabled_is_out_at_once_and_does_not_come_in_again(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as browser:
        await rig.sign_in(browser)
        assert (await browser.service.get("/api/v1/whoami")).status_code == 200
        done = await rig.harness.client.patch(f"/api/v1/users/{ADA}", json={"disabled": True})
        assert done.status_code == 200, done.text
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401
        assert (await rig.sign_in(browser)).status_code == 403


async def test_rules_say_who_becomes_what_at_the_first_sign_in(
    database_url: str, redis_url: str, tmp_path: Path, issuer: str
) -> None:
    rules = AdmissionRules(admins=frozenset({ADA}), default_role=Role.VIEWER)
    async with (
        rig_of(database_url, redis_url, tmp_path, issuer, rules) as rig,
        browsing(rig.harness) as browser,
    ):
        assert (await rig.sign_in(browser)).status_code == 303
        me = (await browser.service.get("/api/v1/whoami")).json()
    assert me["roles"] == {"*": "admin", "default": "viewer"}


async def test_the_way_back_is_of_the_browser_that_went_and_works_once(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as attacker, browsing(rig.harness) as victim:
        back = await attacker.until("/auth/login", CALLBACK)
        # Somebody else's login, finished by the victim, would have the victim work in the attacker's account.
        assert (await victim.service.get(back)).status_code == 401
        await victim.until("/auth/login", CALLBACK)
        assert (await victim.service.get(back)).status_code == 401
        state = parse_qs(urlsplit(back).query)["state"][0]
        wrong = await attacker.service.get(back.replace(state, "A" * len(state)))
        assert wrong.status_code == 401
        # The wrong try has cost the attacker the cookie: the flow begins anew, and its end works once.
        back = await attacker.until("/auth/login", CALLBACK)
        cookies = dict(attacker.service.cookies)
        assert (await attacker.service.get(back)).status_code == 303
        attacker.service.cookies.update(cookies)
        replayed = await attacker.service.get(back)
        assert replayed.status_code == 401
        assert "used already" in replayed.text


async def test_a_code_of_another_sign_in_is_refused(rig: Rig) -> None:
    """The nonce in the identity token is that of the login in which its code was given."""
    await rig.add_user()
    async with browsing(rig.harness) as attacker, browsing(rig.harness) as victim:
        stolen = parse_qs(urlsplit(await victim.until("/auth/login", CALLBACK)).query)["code"][0]
        back = await attacker.until("/auth/login", CALLBACK)
        own = parse_qs(urlsplit(back).query)["code"][0]
        answer = await attacker.service.get(back.replace(own, stolen))
    assert answer.status_code == 401
    assert "another sign-in" in answer.text


async def test_a_login_that_took_too_long_is_over(rig: Rig) -> None:
    await rig.add_user()
    async with browsing(rig.harness) as browser:
        back = await browser.until("/auth/login", CALLBACK)
        async with rig.harness.service.database.engine.begin() as connection:
            await connection.exec_driver_sql("UPDATE logins SET expires_at = now() - interval '1 second'")
        assert (await browser.service.get(back)).status_code == 401


async def test_another_issuer_and_a_refusal_are_told(rig: Rig) -> None:
    async with browsing(rig.harness) as browser:
        back = await browser.until("/auth/login", CALLBACK)
        mixed_up = await browser.service.get(f"{back}&iss=https://elsewhere.example")
        assert mixed_up.status_code == 401
        back = await browser.until("/auth/login", CALLBACK)
        state = parse_qs(urlsplit(back).query)["state"][0]
        refused = await browser.service.get(f"/auth/callback?state={state}&error=access_denied<b>")
        assert refused.status_code == 401
        assert "access_denied&lt;b&gt;" in refused.text


async def test_without_the_provider_a_token_lets_in(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with (
        rig_of(database_url, redis_url, tmp_path, "http://localhost:9") as rig,
        browsing(rig.harness) as browser,
    ):
        page = await browser.service.get("/auth/login?return_to=/version")
        assert page.status_code == 503
        assert "does not answer" in page.text
        form = {"token": TOKEN, "return_to": "/version"}
        assert all(field in page.text for field in ('name="token"', 'value="/version"'))
        answer = await browser.service.post("/auth/login", data=form, headers=SAME)
        assert (answer.status_code, answer.headers["location"]) == (303, "/version")
        assert (await browser.service.get("/api/v1/whoami")).json()["roles"] == {"*": "admin"}
        away = await browser.service.post(
            "/auth/login", data={"token": TOKEN, "return_to": "//evil.example"}, headers=SAME
        )
        assert (away.status_code, away.headers["location"]) == (303, "/")
        wrong = await browser.service.post("/auth/login", data={"token": "wrong"}, headers=SAME)
        assert wrong.status_code == 401
        assert 'role="alert"' in wrong.text


async def test_a_session_may_what_its_token_may_and_ends_with_it(harness: Harness) -> None:
    made = await harness.post(
        "tokens", {"name": "ci", "robot": True, "role": "viewer", "project": "default", "expires_in_s": 600}
    )
    assert made.status_code == 201, made.text
    async with browsing(harness) as browser:
        answer = await browser.service.post("/auth/login", data={"token": made.json()["token"]}, headers=SAME)
        assert "Max-Age=" in answer.headers["set-cookie"]
        assert int(answer.headers["set-cookie"].split("Max-Age=")[1].split(";")[0]) <= 600
        assert (await browser.service.get("/api/v1/whoami")).json()["roles"] == {"default": "viewer"}
        await harness.client.delete(f"/api/v1/tokens/{made.json()['id']}")
        assert (await browser.service.get("/api/v1/whoami")).status_code == 401


@pytest_asyncio.fixture
async def signed_in(harness: Harness) -> AsyncIterator[Browser]:
    """A browser with a session of an admin."""
    async with browsing(harness) as browser:
        answer = await browser.service.post("/auth/login", data={"token": TOKEN}, headers=SAME)
        assert answer.status_code == 303
        yield browser


JOB = {"name": "job", "run": "python -V"}


async def test_only_our_own_pages_may_change_something_with_a_cookie(
    signed_in: Browser, harness: Harness
) -> None:
    for headers in (
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": URL},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"{URL}.evil.example"},
        {},
        {"X-CSRF-Token": "wrong"},
    ):
        answer = await signed_in.service.post("/api/v1/jobs", json=JOB, headers=headers)
        assert answer.status_code == 403, (headers, answer.text)
        assert (await harness.client.get("/api/v1/jobs")).json()["items"] == []
    for number, headers in enumerate((SAME, {"Sec-Fetch-Site": "none"}, {"Origin": URL})):
        job = {**JOB, "name": f"job-{number}"}
        answer = await signed_in.service.post("/api/v1/jobs", json=job, headers=headers)
        assert answer.status_code == 201, (headers, answer.text)


async def test_an_old_browser_shows_the_sessions_own_token(signed_in: Browser) -> None:
    from service.api.http.sessions import csrf_token  # noqa: PLC0415

    session = signed_in.service.cookies["headway"]
    shown = {"X-CSRF-Token": csrf_token(session)}
    assert (await signed_in.service.post("/api/v1/jobs", json=JOB, headers=shown)).status_code == 201
    out = await signed_in.service.post("/auth/logout", data={"csrf_token": csrf_token(session)})
    assert out.status_code == 303
    assert (await signed_in.service.get("/api/v1/whoami")).status_code == 401


async def test_a_token_in_the_header_needs_no_page_and_comes_first(signed_in: Browser) -> None:
    evil = {"Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {TOKEN}"}
    assert (await signed_in.service.post("/api/v1/jobs", json=JOB, headers=evil)).status_code == 201
    wrong = {"Authorization": "Bearer wrong"}
    assert (await signed_in.service.get("/api/v1/whoami", headers=wrong)).status_code == 401


async def test_nobody_is_signed_in_or_out_by_a_page_of_others(signed_in: Browser) -> None:
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert (await signed_in.service.post("/auth/logout", headers=cross)).status_code == 403
    assert (
        await signed_in.service.post("/auth/login", data={"token": TOKEN}, headers=cross)
    ).status_code == 403
    assert (await signed_in.service.get("/api/v1/whoami")).status_code == 200
