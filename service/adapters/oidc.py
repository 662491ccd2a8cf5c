"""Client of an OpenID Connect provider.

It trusts only answers over a safe connection and claims with a valid signature.
"""

from __future__ import annotations

import hmac
import os
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError, SecurityWarning
from joserfc.jwk import JWKRegistry, Key, KeySet, OctKey
from joserfc.jws import JWSRegistry

from headway.proxies import naming, proxy_for
from headway.tls import trusted
from service.domain.identity.sign_in import Claims
from service.domain.shared.errors import Unavailable, WrongToken
from service.http_settings import HttpSettings
from service.usecases.ports.identity import IdentityProvider

_SIGNATURES: Final = JWSRegistry(
    algorithms=[
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
    ],
    strict_check_header=False,
)
"""Accepted signatures: algorithms with a private key of the provider, so neither `none` nor shared secrets.

It limits the sizes of a token, and ignores header parameters that providers add to the standard ones.
"""
_SKEW_S: Final = 60
_MAX_AGE_S: Final = 600
"""Longest accepted age of an identity token: clients present it at once, so an older one may be stolen."""
_METADATA_KEPT_S = 3600.0
_KEYS_FETCHED_EVERY_S = 10.0
"""Shortest time between two requests for the provider's keys.

It limits the requests that tokens with invented key ids can cause.
"""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OidcProvider(IdentityProvider):
    """OpenID Connect provider.

    Args:
        issuer: the provider's name, an https URL (http only on the loopback interface, for tests).
        client_id: the client id under which Headway is registered.
        client_secret: None for a public client.
        device_client_id: the client id under which command lines are registered.
        scopes: the scopes to request; `openid` is always requested.
        name_claim: the claim with the user's name. `email` counts only if the provider marks it as verified.
        client: makes the requests.
        clock_s: a monotonic clock, in seconds.
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
        self._keys = KeySet([])
        self._keys_fetched_s: float | None = None

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, redirect_uri: str) -> str:
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
        endpoint = await self._endpoint("token_endpoint")
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": self._client_id,
        }
        methods = self._metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        auth = None
        if self._secret is not None and "client_secret_basic" in methods:
            auth = httpx.BasicAuth(self._client_id, self._secret)
        elif self._secret is not None:
            body["client_secret"] = self._secret
        answer = await self._send("POST", endpoint, data=body, auth=auth)
        if answer.status_code != 200:
            error = _json(answer).get("error", f"status {answer.status_code}")
            raise WrongToken(
                f"the identity provider refuses this sign-in ({str(error)[:100]}); sign in again."
            )
        token = _json(answer).get("id_token")
        if not isinstance(token, str):
            raise WrongToken(
                "the identity provider gave no identity token; HEADWAY_OIDC_SCOPES must allow openid."
            )
        return token

    async def verify(self, id_token: str, *, nonce: str | None, now: datetime) -> Claims:
        client_id = self._device_client_id if nonce is None else self._client_id
        rules = jwt.JWTClaimsRegistry(
            now=int(now.timestamp()),
            leeway=_SKEW_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            claims = await self._signed_claims(id_token)
            rules.validate(claims)
        except (JoseError, ValueError) as error:
            raise WrongToken(f"the identity token is not valid ({error}); sign in again.") from error
        _check(claims, client_id, nonce, now)
        name = claims.get(self._name_claim)
        if self._name_claim == "email" and claims.get("email_verified") is not True:
            name = None
        return Claims(
            issuer=self._issuer, subject=claims["sub"], name=name if isinstance(name, str) and name else None
        )

    async def _signed_claims(self, id_token: str) -> jwt.Claims:
        """Return the claims of a token with a valid signature; fetch the provider's keys if its key is unknown.

        Raises:
            JoseError, ValueError: no published key of the provider signed the token.
        """
        try:
            return self._decode(id_token)
        except InvalidKeyIdError:
            await self._fetch_keys()
            return self._decode(id_token)

    def _decode(self, id_token: str) -> jwt.Claims:
        # The library warns of `EdDSA` because the name leaves the curve open; the key determines the curve.
        with warnings.catch_warnings(action="ignore", category=SecurityWarning):
            return jwt.decode(id_token, self._keys, registry=_SIGNATURES).claims

    async def _fetch_keys(self) -> None:
        now_s = self._clock_s()
        if self._keys_fetched_s is not None and now_s - self._keys_fetched_s < _KEYS_FETCHED_EVERY_S:
            return
        self._keys_fetched_s = now_s
        answer = await self._send("GET", await self._endpoint("jwks_uri"))
        keys = _json(_checked(answer)).get("keys")
        found = map(_key, keys if isinstance(keys, list) else [])
        self._keys = KeySet([key for key in found if key is not None])

    async def _endpoint(self, name: str) -> str:
        """Return an endpoint of the provider from its discovery document, which is cached for an hour."""
        if self._clock_s() >= self._metadata_until_s or not self._metadata:
            url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            metadata = _json(_checked(await self._send("GET", url)))
            if metadata.get("issuer") != self._issuer:
                raise Unavailable(
                    f"the identity provider names its issuer {str(metadata.get('issuer'))[:200]!r}, but "
                    f"HEADWAY_OIDC_ISSUER is {self._issuer!r}; both must be identical"
                )
            self._metadata, self._metadata_until_s = metadata, self._clock_s() + _METADATA_KEPT_S
        endpoint = self._metadata.get(name)
        if not isinstance(endpoint, str) or not is_safe(endpoint):
            raise Unavailable(
                f"the identity provider names no {name} with an https address; check HEADWAY_OIDC_ISSUER"
            )
        return endpoint

    async def _send(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        try:
            return await self._client.request(method, url, follow_redirects=False, **arguments)
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the identity provider {self._issuer} does not answer ({type(error).__name__}); "
                "sign in with a token meanwhile"
            ) from error


def is_safe(url: str) -> bool:
    """Return True if nobody between the two ends can read or change the traffic with this URL."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _checked(answer: httpx.Response) -> httpx.Response:
    """Return the answer. Raise Unavailable if it is not a success."""
    if answer.status_code != 200:
        raise Unavailable(f"the identity provider answers {answer.status_code} at {answer.request.url}")
    return answer


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _key(published: Any) -> Key | None:
    """Return a published key, or None unless it is a sufficiently long public key for signatures."""
    try:
        with warnings.catch_warnings(action="error", category=SecurityWarning):  # RSA below 2,048 bits
            key = JWKRegistry.import_key(published)
            key.check_use("sig")
    except (JoseError, SecurityWarning, ValueError, TypeError, KeyError):
        return None
    return None if isinstance(key, OctKey) else key


def _check(claims: jwt.Claims, client_id: str, nonce: str | None, now: datetime) -> None:
    """Check the claims of a verified token that OpenID Connect adds: authorized party, nonce and age."""
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    party = claims.get("azp")
    if party != client_id and (several or party is not None):
        raise WrongToken("the identity token was issued to another application; sign in again.")
    issued = claims.get("nonce")
    # A token without a nonce was issued to a command line.
    fits = issued is None if nonce is None else isinstance(issued, str) and hmac.compare_digest(issued, nonce)
    if not fits:
        raise WrongToken("the identity token belongs to another sign-in; sign in again.")
    if now.timestamp() - claims["iat"] > _MAX_AGE_S + _SKEW_S:
        raise WrongToken(
            "the identity token was issued too long ago: sign in again, and check the clocks of the "
            "identity provider and the service."
        )


def provider_of(settings: HttpSettings) -> OidcProvider | None:
    """Return the provider that the settings name, or None if single sign-on is not configured."""
    oidc = settings.oidc
    if oidc is None:
        return None
    proxy = proxy_for(oidc.issuer, os.environ)
    with naming(proxy, oidc.issuer):
        client = httpx.AsyncClient(
            verify=trusted(str(settings.ca_file) if settings.ca_file else None),
            timeout=10.0,
            limits=httpx.Limits(max_keepalive_connections=0),  # asked a few times an hour
            proxy=proxy.address if proxy else None,
            trust_env=False,
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
