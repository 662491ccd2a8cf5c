"""Only claims that a provider signs are believed: each test has one claim wrong."""

from __future__ import annotations

import base64
import hmac
import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from service.adapters.oidc import OidcProvider
from service.domain.identity.sign_in import Claims
from service.domain.shared.errors import Unavailable, WrongToken

ISSUER = "https://id.example"
NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
AT = NOW.timestamp()
GOOD = {
    "iss": ISSUER,
    "aud": "headway",
    "sub": "s1",
    "iat": AT - 5,
    "exp": AT + 300,
    "nonce": "n1",
    "email": "ada@example.org",
    "email_verified": True,
}
OURS = RSAKey.generate_key(2048)
THEIRS = RSAKey.generate_key(2048)


def jwk(key: Key, kid: str, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), "kid": kid, "use": "sig", **more}


class World:
    """A provider whose answers the test chooses, and the time."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
        }
        self.keys: list[dict[str, Any]] = [jwk(OURS, "k1", alg="RS256")]
        self.token: tuple[int, Any] = (200, {"id_token": "x"})
        self.asked: list[httpx.Request] = []
        self.now_s = 0.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        path = request.url.path
        if path.endswith("openid-configuration"):
            return httpx.Response(200, json=self.metadata)
        if path == "/keys":
            return httpx.Response(200, json={"keys": self.keys})
        status, body = self.token
        return httpx.Response(status, json=body)

    def provider(self, secret: str | None = None, name_claim: str = "email") -> OidcProvider:
        return OidcProvider(
            issuer=ISSUER,
            client_id="headway",
            client_secret=secret,
            device_client_id="device",
            scopes=("openid", "email"),
            name_claim=name_claim,
            client=httpx.AsyncClient(transport=httpx.MockTransport(self.answer)),
            clock_s=lambda: self.now_s,
        )


@pytest.fixture
def world() -> World:
    return World()


def signed(
    claims: Mapping[str, Any], key: Key = OURS, kid: str | None = "k1", alg: str = "RS256", **header: Any
) -> str:
    header |= {"alg": alg} | ({"kid": kid} if kid else {})
    with warnings.catch_warnings(action="ignore", category=SecurityWarning):  # of EdDSA, since RFC 9864
        return jwt.encode(
            header, dict(claims), key, registry=JWSRegistry(algorithms=[alg], strict_check_header=False)
        )


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name not in names}


async def test_a_good_token_says_who_it_is(world: World) -> None:
    said = await world.provider().verify(signed(GOOD), nonce="n1", now=NOW)
    assert said == Claims(issuer=ISSUER, subject="s1", name="ada@example.org")


@pytest.mark.parametrize(
    "claims",
    [
        {**GOOD, "iss": "https://evil.example"},
        {**GOOD, "iss": ISSUER + "/"},
        {**GOOD, "aud": "another"},
        {**GOOD, "aud": ["headway", "another"]},
        {**GOOD, "aud": ["headway", "another"], "azp": "another"},
        {**GOOD, "azp": "another"},
        {**GOOD, "azp": ["headway"]},
        {**GOOD, "nonce": "n2"},
        {**GOOD, "nonce": ["n1"]},
        {**GOOD, "exp": AT - 61},
        {**GOOD, "exp": "never"},
        {**GOOD, "exp": True},
        {**GOOD, "exp": float("nan")},
        {**GOOD, "iat": AT + 120},
        {**GOOD, "nbf": AT + 120},
        {**GOOD, "iat": AT - 3600, "exp": AT + 3600},
        without("nonce"),
        without("exp"),
        without("iat"),
        without("sub"),
        without("aud"),
        without("iss"),
    ],
)
async def test_a_wrong_claim_is_refused(world: World, claims: Mapping[str, Any]) -> None:
    with pytest.raises(WrongToken):
        await world.provider().verify(signed(claims), nonce="n1", now=NOW)


async def test_a_token_of_a_browser_is_none_of_a_command_line(world: World) -> None:
    with pytest.raises(WrongToken, match="another sign-in"):
        await world.provider().verify(signed({**GOOD, "aud": "device"}), nonce=None, now=NOW)
    own = {**without("nonce"), "aud": "device"}
    assert (await world.provider().verify(signed(own), nonce=None, now=NOW)).subject == "s1"
    with pytest.raises(WrongToken):
        await world.provider().verify(signed(without("nonce")), nonce=None, now=NOW)
    with pytest.raises(WrongToken):
        await world.provider().verify(signed({**GOOD, "aud": "device"}), nonce="n1", now=NOW)


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _part(value: Any) -> str:
    return _text(json.dumps(value).encode())


async def test_a_signature_that_proves_nothing_is_refused(world: World) -> None:
    good = signed(GOOD)
    head, body, signature = good.split(".")
    # Keyed with what everybody may know of the key; by hand, since the library refuses to make it.
    confused = f"{_part({'alg': 'HS256', 'kid': 'k1'})}.{body}"
    mac = hmac.digest(OURS.as_pem(private=False), confused.encode(), "sha256")
    forged = [
        f"{_part({'alg': 'none', 'kid': 'k1'})}.{body}.",
        f"{_part({'alg': 'None', 'kid': 'k1'})}.{body}.{signature}",
        f"{_part({'kid': 'k1'})}.{body}.{signature}",
        f"{_part({'alg': 'PS256', 'kid': 'k1'})}.{body}.{signature}",
        f"{confused}.{_text(mac)}",
        signed(GOOD, THEIRS),
        signed(GOOD, THEIRS, "k2"),
        signed(GOOD, THEIRS, None),
        f"{head}.{_part({**GOOD, 'sub': 's2'})}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        "",
        "a.b.c",
        ".." * 4000,
        f"{_text(b'[' * 100_000)}.{body}.{signature}",
        signed({**GOOD, "more": "x" * 200_000}),
        good[:-8] + "AAAAAAAA",
    ]
    provider = world.provider()
    for token in forged:
        with pytest.raises(WrongToken):
            await provider.verify(token, nonce="n1", now=NOW)


async def test_a_key_of_the_provider_for_something_else_signs_nothing(world: World) -> None:
    world.keys = [
        jwk(OURS, "k1", use="enc"),
        (shared := OctKey.generate_key(256)).as_dict(private=True, kid="k3", alg="HS256"),
    ]
    provider = world.provider()
    with pytest.raises(WrongToken):
        await provider.verify(signed(GOOD), nonce="n1", now=NOW)
    with pytest.raises(WrongToken):
        await provider.verify(signed(GOOD, shared, "k3", "HS256"), nonce="n1", now=NOW)


async def test_a_short_key_signs_nothing(world: World) -> None:
    with pytest.warns(SecurityWarning):
        short = RSAKey.generate_key(1024)
    world.keys = [jwk(short, "k1")]
    with pytest.raises(WrongToken):
        await world.provider().verify(signed(GOOD, short), nonce="n1", now=NOW)


async def test_what_is_not_known_of_a_key_or_a_header_does_no_harm(world: World) -> None:
    unknown: list[Any] = [
        {"kty": "AKP", "kid": "k1"},
        {"kty": "RSA", "kid": "k1"},
        {"kty": "OKP", "crv": "another", "x": "AA", "kid": "k1"},
        {"kty": []},
        "k1",
        jwk(THEIRS, "k1", use="enc"),
    ]
    world.keys = [*unknown, *world.keys]
    token = signed(GOOD, appid="x", x5t="y")
    assert (await world.provider().verify(token, nonce="n1", now=NOW)).subject == "s1"


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        (ECKey.generate_key("P-256"), "ES256"),
        (OKPKey.generate_key("Ed25519"), "EdDSA"),
        (OKPKey.generate_key("Ed25519"), "Ed25519"),
        (OURS, "PS256"),
    ],
)
async def test_other_good_signatures_count_too(world: World, key: Any, alg: str) -> None:
    world.keys = [jwk(key, "k1")]
    assert (await world.provider().verify(signed(GOOD, key, alg=alg), nonce="n1", now=NOW)).subject == "s1"


async def test_keys_are_asked_for_again_when_they_change_but_not_at_anybodys_wish(world: World) -> None:
    provider = world.provider()
    await provider.verify(signed(GOOD), nonce="n1", now=NOW)
    world.keys = [jwk(THEIRS, "k2", alg="RS256")]

    def asked() -> int:
        return sum(request.url.path == "/keys" for request in world.asked)

    for _ in range(50):
        with pytest.raises(WrongToken):
            await provider.verify(signed(GOOD, THEIRS, "k2"), nonce="n1", now=NOW)
    assert asked() == 1
    world.now_s = 11.0
    assert (await provider.verify(signed(GOOD, THEIRS, "k2"), nonce="n1", now=NOW)).subject == "s1"
    with pytest.raises(WrongToken):
        await provider.verify(signed(GOOD), nonce="n1", now=NOW)  # the old key is none any more
    assert asked() == 2


@pytest.mark.parametrize(
    ("claims", "claim", "name"),
    [
        ({**GOOD, "email_verified": False}, "email", None),
        ({**GOOD, "email_verified": "true"}, "email", None),
        (without("email_verified"), "email", None),
        (without("email"), "email", None),
        ({**GOOD, "preferred_username": "ada"}, "preferred_username", "ada"),
        ({**GOOD, "preferred_username": ["ada"]}, "preferred_username", None),
    ],
)
async def test_only_a_name_that_can_be_relied_upon_is_one(
    world: World, claims: dict[str, Any], claim: str, name: str | None
) -> None:
    said = await world.provider(name_claim=claim).verify(signed(claims), nonce="n1", now=NOW)
    assert said.name == name


async def test_a_browser_is_sent_with_all_that_the_standard_asks(world: World) -> None:
    url = await world.provider().authorization_url(
        state="s", nonce="n", challenge="c", redirect_uri="https://headway.example/auth/callback"
    )
    assert url.startswith(f"{ISSUER}/authorize?")
    assert {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()} == {
        "response_type": "code",
        "client_id": "headway",
        "redirect_uri": "https://headway.example/auth/callback",
        "scope": "openid email",
        "state": "s",
        "nonce": "n",
        "code_challenge": "c",
        "code_challenge_method": "S256",
    }


async def test_a_code_is_redeemed_with_the_secret_where_there_is_one(world: World) -> None:
    assert await world.provider("secret").redeem("c", verifier="v", redirect_uri="r") == "x"
    sent = world.asked[-1]
    assert sent.headers["authorization"].startswith("Basic ")
    assert parse_qs(sent.content.decode())["code_verifier"] == ["v"]
    world.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    await world.provider("secret").redeem("c", verifier="v", redirect_uri="r")
    assert parse_qs(world.asked[-1].content.decode())["client_secret"] == ["secret"]
    await world.provider().redeem("c", verifier="v", redirect_uri="r")
    assert b"secret" not in world.asked[-1].content


@pytest.mark.parametrize("answer", [(400, {"error": "invalid_grant"}), (200, {}), (200, []), (500, "oops")])
async def test_a_code_that_is_refused_is_told(world: World, answer: tuple[int, Any]) -> None:
    world.token = answer
    with pytest.raises(WrongToken):
        await world.provider().redeem("c", verifier="v", redirect_uri="r")


async def test_a_provider_that_is_not_who_it_should_be_is_not_believed(world: World) -> None:
    world.metadata["issuer"] = "https://evil.example"
    with pytest.raises(Unavailable, match="evil\\.example"):
        await world.provider().verify(signed(GOOD), nonce="n1", now=NOW)
    world.metadata |= {"issuer": ISSUER, "token_endpoint": "http://id.example/token"}
    with pytest.raises(Unavailable, match="token_endpoint"):
        await world.provider().redeem("c", verifier="v", redirect_uri="r")
