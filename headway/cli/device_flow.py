"""Sign-in from a terminal by the device authorization grant (RFC 8628).

The identity provider issues a code, and the user confirms it in any browser.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from headway.contract.views.identity import SignInView
from headway.errors import HeadwayError
from headway.http import Timer

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_S = 5.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OTHERWISE = "Sign in with a token instead: headway login --token."


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Instructions for the user: open `url` and type `code`, or open `complete_url`, which contains the code."""

    url: str
    code: str
    complete_url: str | None


def sign_in(
    provider: httpx.Client,
    settings: SignInView,
    ask: Callable[[Confirmation], None],
    timer: Timer = time,
) -> str:
    """Return the identity token that the provider issues once the user has confirmed the code.

    Args:
        provider: HTTP client for the requests.
        settings: sign-in settings of the service, which name an identity provider.
        ask: function that tells the user what to do.
        timer: clock for the waits.

    Raises:
        HeadwayError: the provider does not answer, does not support device authorization or refuses it, or
            the code expires.
    """
    issuer = settings.issuer or ""
    found = _request(provider, "GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if found.get("issuer") != issuer:
        raise HeadwayError(f"The identity provider is not {issuer}, but {found.get('issuer')}.", _OTHERWISE)
    if "device_authorization_endpoint" not in found:
        raise HeadwayError(
            f"The identity provider {issuer} does not support sign-in from a terminal.", _OTHERWISE
        )
    scope = " ".join(dict.fromkeys(("openid", *settings.scopes)))
    body = {"client_id": settings.client_id or "", "scope": scope}
    begun = _request(provider, "POST", str(found["device_authorization_endpoint"]), data=body)
    if "device_code" not in begun:
        raise HeadwayError(f"The identity provider refuses to start a sign-in: {_reason(begun)}.", _OTHERWISE)
    complete = begun.get("verification_uri_complete")
    ask(
        Confirmation(
            url=str(begun.get("verification_uri", "")),
            code=str(begun.get("user_code", "")),
            complete_url=str(complete) if complete else None,
        )
    )
    return _wait(provider, str(found.get("token_endpoint", "")), settings, begun, timer)


def _wait(
    provider: httpx.Client, endpoint: str, settings: SignInView, begun: Mapping[str, Any], timer: Timer
) -> str:
    """Poll the provider, as often as it allows, until the user has confirmed."""
    pause_s = float(begun.get("interval", 5))
    until_s = timer.monotonic() + float(begun.get("expires_in", 600))
    body = {
        "grant_type": _GRANT,
        "device_code": str(begun["device_code"]),
        "client_id": settings.client_id or "",
    }
    while timer.monotonic() + pause_s < until_s:
        timer.sleep(pause_s)
        answer = _request(provider, "POST", endpoint, data=body)
        if isinstance(answer.get("id_token"), str):
            return str(answer["id_token"])
        if answer.get("error") == "slow_down":
            pause_s += _SLOWER_S
        elif answer.get("error") != "authorization_pending":
            raise HeadwayError(f"The identity provider refused the sign-in: {_reason(answer)}.", "Try again.")
    raise HeadwayError("The code expired before it was confirmed.", "Try again: headway login.")


def _request(provider: httpx.Client, method: str, url: str, **arguments: Any) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise HeadwayError(f"{url!r} of the identity provider is not safe: it must be https.", _OTHERWISE)
    try:
        answer = provider.request(method, url, **arguments).json()
    except httpx.HTTPError as error:
        raise HeadwayError(f"The identity provider does not answer at {url} ({error}).", _OTHERWISE) from None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise HeadwayError(f"{url} does not answer like an identity provider.", _OTHERWISE)
    return answer


def _reason(answer: Mapping[str, Any]) -> str:
    return str(answer.get("error_description") or answer.get("error") or "no reason was given")[:200]
