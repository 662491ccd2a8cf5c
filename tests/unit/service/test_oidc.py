"""What a provider signs is believed, and nothing else: every claim that could be wrong, wrong once."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from service.adapters.oidc import OidcProvider
from service.domain.errors import Unavailable, WrongToken
from service.domain.sign_in import Claims

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
OURS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
THEIRS = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    algorithms = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind = next((made for base, made in algorithms.items() if isinstance(key, base)), OKPAlgorithm)
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig", **more}


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


def signed(claims: Mapping[str, Any], key: Any = OURS, kid: str | None = "k1", alg: str = "RS256") -> str:
    return jwt.encode(dict(claims), key, algorithm=alg, headers={"kid": kid} if kid else {})


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
        {**GOOD, "nonce": "n2"},
        {**GOOD, "nonce": ["n1"]},
        {**GOOD, "exp": AT - 61},
        {**GOOD, "exp": "never"},
        {**GOOD, "exp": True},
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


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def test_a_signature_that_proves_nothing_is_refused(world: World) -> None:
    public = OURS.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = signed(GOOD)
    head, body, signature = good.split(".")
    # Signed "symmetrically", with what everybody may know of the key; as text, since the library refuses to make it.
    confused = jwt.encode(GOOD, "x" * 64, algorithm="HS256", headers={"kid": "k1"})
    forged = [
        f"{_part({'alg': 'none', 'kid': 'k1'})}.{body}.",
        f"{_part({'alg': 'None', 'kid': 'k1'})}.{body}.{signature}",
        f"{_part({'kid': 'k1'})}.{body}.{signature}",
        f"{_part({'alg': 'PS256', 'kid': 'k1'})}.{body}.{signature}",
        confused,
        signed(GOOD, THEIRS),
        signed(GOOD, THEIRS, "k2"),
        signed(GOOD, THEIRS, None),
        f"{head}.{_part({**GOOD, 'sub': 's2'})}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        "",
        "a.b.c",
        ".." * 4000,
        good[:-8] + "AAAAAAAA",
    ]
    assert public not in confused.encode()
    provider = world.provider()
    for token in forged:
        with pytest.raises(WrongToken):
            await provider.verify(token, nonce="n1", now=NOW)


async def test_a_key_of_the_provider_for_something_else_signs_nothing(world: World) -> None:
    world.keys = [
        jwk(OURS, "k1", use="enc"),
        {"kty": "oct", "k": _part("x" * 40), "kid": "k3", "alg": "HS256"},
    ]
    provider = world.provider()
    with pytest.raises(WrongToken):
        await provider.verify(signed(GOOD), nonce="n1", now=NOW)
    with pytest.raises(WrongToken):
        await provider.verify(jwt.encode(GOOD, "x" * 40, "HS256", {"kid": "k3"}), nonce="n1", now=NOW)


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
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
    with pytest.raises(Unavailable, match="to the letter"):
        await world.provider().verify(signed(GOOD), nonce="n1", now=NOW)
    world.metadata |= {"issuer": ISSUER, "token_endpoint": "http://id.example/token"}
    with pytest.raises(Unavailable, match="token_endpoint"):
        await world.provider().redeem("c", verifier="v", redirect_uri="r")
