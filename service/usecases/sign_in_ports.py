"""What signing in needs of the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headway.contract.identity import Role
from service.domain.sign_in import Account, Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A browser that is at the provider. `verifier` and `nonce` are secrets of this one sign-in."""

    state_sha256: str
    verifier: str
    nonce: str
    return_to: str
    expires_at: datetime


class IdentityProvider(Protocol):
    """Where people prove who they are (OpenID Connect). Every method raises Unavailable when it does not answer."""

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, redirect_uri: str) -> str:
        """Where to send a browser. `challenge` is the SHA-256 of the verifier (PKCE), base64url."""
        ...

    async def redeem(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """The identity token that the provider gives for a code. Raises WrongToken."""
        ...

    async def verify(self, id_token: str, *, nonce: str | None, now: datetime) -> Claims:
        """What an identity token says, if it is this provider's, for us, fresh and with exactly this nonce. Raises
        WrongToken.
        """
        ...


class SignIns(Protocol):
    """Sign-ins that are under way, and who comes in by them."""

    async def begin(self, login: Login) -> None:
        """Keep a login until it comes back."""
        ...

    async def take(self, state_sha256: str) -> Login | None:
        """The login of this state; it is gone with that."""
        ...

    async def account(self, claims: Claims) -> Account | None:
        """The user who is bound to the subject, else the one of the name; locked."""
        ...

    async def admit(self, account: Account, roles: Mapping[str, Role], now: datetime) -> None:
        """Store an account: a new one, or bound to its subject by now; with further roles where it has none."""
        ...
