"""Signing in from a terminal: what the provider may answer, and what is said then."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from headway.cli.device_flow import Confirmation, sign_in
from headway.contract.views.identity import SignInView
from headway.errors import HeadwayError

ISSUER = "https://id.example"
WAYS = SignInView(issuer=ISSUER, client_id="terminal", scopes=["openid", "email"])
PENDING = {"error": "authorization_pending"}


class Provider:
    """Answers in turn, and keeps the time."""

    def __init__(self, *answers: Any, metadata: dict[str, Any] | None = None) -> None:
        self.answers = list(answers)
        self.metadata = metadata or {
            "issuer": ISSUER,
            "device_authorization_endpoint": f"{ISSUER}/device",
            "token_endpoint": f"{ISSUER}/token",
        }
        self.begun: dict[str, Any] = {
            "device_code": "d",
            "user_code": "AB-CD",
            "verification_uri": f"{ISSUER}/go",
            "interval": 2,
            "expires_in": 60,
        }
        self.asked: list[dict[str, list[str]]] = []
        self.slept: list[float] = []
        self.wanted: list[Confirmation] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("openid-configuration"):
            return httpx.Response(200, json=self.metadata)
        self.asked.append(parse_qs(request.content.decode()))
        if request.url.path == "/device":
            return httpx.Response(200, json=self.begun)
        said = self.answers.pop(0) if self.answers else PENDING
        return httpx.Response(200 if "id_token" in said else 400, json=said)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)

    def monotonic(self) -> float:
        return sum(self.slept)

    def sign_in(self) -> str:
        with httpx.Client(transport=httpx.MockTransport(self.answer)) as client:
            return sign_in(client, WAYS, self.wanted.append, self)


def test_it_waits_as_long_and_as_slowly_as_the_provider_wants() -> None:
    provider = Provider(PENDING, {"error": "slow_down"}, PENDING, {"id_token": "t"})
    assert provider.sign_in() == "t"
    assert provider.slept == [2.0, 2.0, 7.0, 7.0]
    assert provider.wanted == [Confirmation(f"{ISSUER}/go", "AB-CD", None)]
    assert provider.asked[0] == {"client_id": ["terminal"], "scope": ["openid email"]}
    assert provider.asked[-1]["device_code"] == ["d"]


def test_a_code_that_nobody_confirms_ends() -> None:
    provider = Provider()
    with pytest.raises(HeadwayError, match="expired"):
        provider.sign_in()
    assert provider.monotonic() < 60


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant"])
def test_a_refusal_is_told(error: str) -> None:
    with pytest.raises(HeadwayError, match=error):
        Provider({"error": error}).sign_in()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"issuer": "https://evil.example"}, "evil"),
        ({"device_authorization_endpoint": "http://id.example/device"}, "not safe"),
        ({"token_endpoint": "file:///etc/passwd"}, "not safe"),
    ],
)
def test_a_provider_that_cannot_be_trusted_is_not_used(change: dict[str, str], said: str) -> None:
    metadata = {**Provider().metadata, **change}
    with pytest.raises(HeadwayError, match=said):
        Provider({"id_token": "t"}, metadata=metadata).sign_in()


def test_a_provider_without_the_flow_is_named() -> None:
    with pytest.raises(HeadwayError, match="from a terminal"):
        Provider(metadata={"issuer": ISSUER}).sign_in()


def test_an_answer_that_is_none_is_told() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>")

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
        pytest.raises(HeadwayError, match="does not answer like"),
    ):
        sign_in(client, WAYS, lambda _: None, Provider())
