"""An OpenID Connect provider, asked over HTTP. What it says is believed only as far as its signature goes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx
import jwt
from jwt import PyJWK

from headway._tls import trusted
from service.domain.errors import Unavailable, WrongToken
from service.domain.sign_in import Claims
from service.http_settings import HttpSettings

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures by a key that only the provider has. No `none`, and none by a shared secret."""
_SKEW: Final = timedelta(seconds=60)
_LONGEST_AGE: Final = timedelta(minutes=10)
"""Of a token since it was issued: it is shown at once, or was stolen."""
_METADATA_KEPT_S = 3600.0
_KEYS_ASKED_EVERY_S = 10.0
"""Nobody can make us ask the provider for its keys more often, with tokens of made-up key ids."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OidcProvider:
    """Implements `usecases.sign_in_ports.IdentityProvider`.

    Args:
        issuer: the provider's name, an https URL (http on this machine only, for tests).
        client_id: as what Headway is registered there.
        client_secret: None for a public client.
        device_client_id: as what command lines are registered there.
        scopes: what to ask for; `openid` is always asked for.
        name_claim: what tells the name of a user. `email` counts only if the provider says that it was verified.
        client: makes the requests.
        clock_s: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        client_secret: str | None,
        device_client_id: str,
        scopes: tuple[str, ...],
        name_claim: str,
        client: httpx.AsyncClient,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._device_client_id = device_client_id
        self._secret = client_secret
        self._scope = " ".join(dict.fromkeys(("openid", *scopes)))
        self._name_claim = name_claim
        self._client = client
        self._clock_s = clock_s
        self._metadata: dict[str, Any] = {}
        self._metadata_until_s = 0.0
        self._keys: dict[str, dict[str, Any]] = {}
        """As the provider publishes them, by their ids."""
        self._keys_asked_s: float | None = None

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, redirect_uri: str) -> str:
        """Where to send a browser."""
        endpoint = await self._endpoint("authorization_endpoint")
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._client_id,
                "redirect_uri": redirect_uri,
                "scope": self._scope,
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    async def redeem(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """The identity token that the provider gives for a code."""
        endpoint = await self._endpoint("token_endpoint")
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": self._client_id,
        }
        ways = self._metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        auth = None
        if self._secret is not None and "client_secret_basic" in ways:
            auth = httpx.BasicAuth(self._client_id, self._secret)
        elif self._secret is not None:
            body["client_secret"] = self._secret
        answer = await self._ask("POST", endpoint, data=body, auth=auth)
        if answer.status_code != 200:
            said = _json(answer).get("error", f"status {answer.status_code}")
            raise WrongToken(
                f"the identity provider refuses this sign-in ({str(said)[:100]}); sign in again."
            )
        token = _json(answer).get("id_token")
        if not isinstance(token, str):
            raise WrongToken(
                "the identity provider gave no identity token; HEADWAY_OIDC_SCOPES must allow openid."
            )
        return token

    async def verify(self, id_token: str, *, nonce: str | None, now: datetime) -> Claims:
        """What an identity token says. One without a nonce was given to a command line."""
        client_id = self._device_client_id if nonce is None else self._client_id
        try:
            header = jwt.get_unverified_header(id_token)
            key = await self._key(header)
            claims = jwt.decode(
                id_token,
                key,
                algorithms=[header["alg"]],
                audience=client_id,
                issuer=self._issuer,
                # Times are looked at below, by the clock that all else goes by.
                options={
                    "require": ["exp", "iat", "sub"],
                    "enforce_minimum_key_length": True,
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.PyJWTError as error:
            raise WrongToken(f"the identity token is not valid: {error}; sign in again.") from error
        self._check(claims, client_id, nonce, now)
        name = claims.get(self._name_claim)
        if self._name_claim == "email" and claims.get("email_verified") is not True:
            name = None
        return Claims(
            issuer=self._issuer, subject=claims["sub"], name=name if isinstance(name, str) and name else None
        )

    def _check(self, claims: Mapping[str, Any], client_id: str, nonce: str | None, now: datetime) -> None:
        """What a signature does not say: for whom, for which sign-in, and for how long."""
        parties = claims.get("aud")
        told = claims.get("azp")
        if (isinstance(parties, list) and len(parties) > 1 and told is None) or told not in {
            None,
            client_id,
        }:
            raise WrongToken("the identity token was made for another application.")
        said = claims.get("nonce")
        fits = said is None if nonce is None else isinstance(said, str) and hmac.compare_digest(said, nonce)
        if not fits:
            raise WrongToken("the identity token belongs to another sign-in; sign in again.")
        moment = now.timestamp()
        if not moment < _number(claims, "exp") + _SKEW.total_seconds():
            raise WrongToken("the identity token has expired; sign in again.")
        issued = _number(claims, "iat")
        early = (
            max(issued, _number(claims, "nbf") if "nbf" in claims else issued) - _SKEW.total_seconds()
            > moment
        )
        if early or moment - issued > (_LONGEST_AGE + _SKEW).total_seconds():
            raise WrongToken(
                "the identity token is from another time: sign in again, and look at the clocks of provider and service."
            )

    async def _key(self, header: Mapping[str, Any]) -> PyJWK:
        """The key that a token says it was signed with. Keys are asked for again when it is a new one."""
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise WrongToken(
                f"the identity token is signed by {str(algorithm)[:20]!r}, which proves nothing."
            )
        identity = header.get("kid")
        key = self._known_key(identity)
        if key is None:
            await self._fetch_keys()
            key = self._known_key(identity)
        if key is None:
            raise WrongToken(
                "the identity token is signed with a key that is not its provider's; sign in again."
            )
        # An RSA key that does not say what it is for signs in several ways; all others are for one alone.
        free = key.get("kty") == "RSA" and "alg" not in key and str(algorithm).startswith(("RS", "PS"))
        return PyJWK(key, str(algorithm) if free else None)

    def _known_key(self, identity: object) -> dict[str, Any] | None:
        if identity is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(identity) if isinstance(identity, str) else None

    async def _fetch_keys(self) -> None:
        now_s = self._clock_s()
        if self._keys_asked_s is not None and now_s - self._keys_asked_s < _KEYS_ASKED_EVERY_S:
            return
        self._keys_asked_s = now_s
        answer = await self._ask("GET", await self._endpoint("jwks_uri"))
        keys = _json(_well(answer)).get("keys")
        self._keys = {
            str(one.get("kid", "")): one
            for one in (keys if isinstance(keys, list) else [])
            if isinstance(one, dict) and one.get("use", "sig") == "sig" and one.get("kty") != "oct"
        }

    async def _endpoint(self, name: str) -> str:
        """An address of the provider, from what it says of itself."""
        if self._clock_s() >= self._metadata_until_s or not self._metadata:
            url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            metadata = _json(_well(await self._ask("GET", url)))
            if metadata.get("issuer") != self._issuer:
                raise Unavailable(
                    f"the identity provider calls itself {str(metadata.get('issuer'))[:200]!r}, and "
                    f"HEADWAY_OIDC_ISSUER is {self._issuer!r}: they must be the same to the letter"
                )
            self._metadata, self._metadata_until_s = metadata, self._clock_s() + _METADATA_KEPT_S
        endpoint = self._metadata.get(name)
        if not isinstance(endpoint, str) or not is_safe(endpoint):
            raise Unavailable(f"the identity provider says no {name} that can be trusted")
        return endpoint

    async def _ask(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        try:
            return await self._client.request(method, url, follow_redirects=False, **arguments)
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the identity provider {self._issuer} does not answer ({type(error).__name__}); "
                "sign in with a token meanwhile"
            ) from error


def is_safe(url: str) -> bool:
    """Whether nobody on the way can read or change what is exchanged with a URL."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _well(answer: httpx.Response) -> httpx.Response:
    if answer.status_code != 200:
        raise Unavailable(f"the identity provider answers {answer.status_code} at {answer.request.url}")
    return answer


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongToken(f"the identity token says no time in {name}.")
    return float(value)


def provider_of(settings: HttpSettings) -> OidcProvider | None:
    """The provider that the settings name."""
    oidc = settings.oidc
    if oidc is None:
        return None
    client = httpx.AsyncClient(
        verify=trusted(str(settings.ca_file) if settings.ca_file else None),
        timeout=10.0,
        limits=httpx.Limits(max_keepalive_connections=0),  # asked a few times an hour
    )
    return OidcProvider(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        client_secret=oidc.client_secret,
        device_client_id=oidc.device_client_id or oidc.client_id,
        scopes=oidc.scopes,
        name_claim=oidc.name_claim,
        client=client,
    )
