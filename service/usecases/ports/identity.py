"""Interfaces for users, tokens, projects, roles and sign-ins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.contract.views.identity import EVERYWHERE, ProjectQuota, ProjectView, Role, TokenView, UserView
from headway.contract.views.jobs import Page
from service.domain.identity.sign_in import Account, Claims


def session_of_token(token_id: str) -> str:
    """Return the value of `TokenRecord.session` for a browser that signed in with this token."""
    return f"token {token_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token row, without the token itself."""

    id: str
    name: str
    user_id: str | None
    """The token's user; None for a robot's token."""
    role: Role | None
    """The highest role that the token grants; None: all roles of its user."""
    project: str = EVERYWHERE
    session: str | None = None
    """The sign-in method of a browser session; None for a token that its owner uses directly."""
    parent_id: str | None = None
    """The token that authorised the creation of this one."""
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """A token with the facts about its user. `roles` are the user's, by project."""

    token: TokenRecord
    user_name: str | None = None
    disabled_at: datetime | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user row.

    `issuer` and `subject` identify the user at an identity provider, once they have signed in there.
    """

    id: str
    name: str
    issuer: str | None = None
    subject: str | None = None
    created_at: datetime
    last_seen_at: datetime | None = None
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRecord:
    """A project row of the database."""

    name: str
    description: str = ""
    quota: ProjectQuota = field(default_factory=ProjectQuota)
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """The tokens that a reader may list: a user's own, the token presented, and robots' tokens of `projects`
    (None: all tokens).
    """

    user_id: str | None
    token_id: str | None
    projects: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A sign-in whose browser is at the identity provider.

    `verifier` and `nonce` are secrets of this sign-in.
    """

    state_sha256: str
    verifier: str
    nonce: str
    return_to: str
    expires_at: datetime


class IdentityProvider(Protocol):
    """The identity provider at which people authenticate (OpenID Connect).

    Every method raises Unavailable if it does not answer.
    """

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, redirect_uri: str) -> str:
        """Return the URL to send a browser to.

        `challenge` is the SHA-256 of the verifier (PKCE), base64url.
        """

    async def redeem(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """Exchange a code for the provider's identity token. Raise WrongToken if the provider rejects it."""

    async def verify(self, id_token: str, *, nonce: str | None, now: datetime) -> Claims:
        """Return the claims of an identity token.

        Raise WrongToken unless this provider issued it for this service, recently and with exactly this
        nonce.
        """


class Tokens(Protocol):
    """Tokens of users and robots, as digests."""

    async def of_digest(self, token_sha256: str) -> Bearer | None:
        """Return the bearer of a token, even if it is revoked or expired; None if it is unknown."""

    async def of_digests(self, tokens_sha256: Collection[str]) -> dict[str, Bearer]:
        """Return the bearers by digest, without unknown tokens, in one statement."""

    async def used(self, at: Mapping[str, datetime], at_most_every_s: float) -> None:
        """Store when tokens, by id, and their users were last seen.

        Skip those stored within the last `at_most_every_s`.
        """

    async def add(self, token: TokenRecord, token_sha256: str) -> bool:
        """Store a token by its digest.

        A stored token with the same id that was never used and is otherwise equal gets the new digest. Return
        False, and store nothing, if a different token has the id.
        """

    async def page(
        self, seen: TokensSeen, *, now: datetime, limit: int, cursor: str | None
    ) -> Page[TokenView]:
        """Return the valid tokens that the reader may list, newest first."""

    async def lock(self, token_id: str) -> TokenRecord:
        """Return a token, locked. Raise NotFound if it does not exist."""

    async def renew(
        self, old_sha256: str, new_sha256: str, *, now: datetime, until: datetime
    ) -> TokenRecord | None:
        """Give a valid token another digest and extend it to `until`.

        It lasts at most as long as the token with which its session began. Return None if no valid token has
        the old digest.
        """

    async def revoke(self, token_id: str, now: datetime, *, family: bool = False) -> None:
        """Revoke a token and the sessions begun with it.

        With `family`, also revoke every token that was created with these. Revoking again keeps the first
        revocation time.
        """


class Users(Protocol):
    """Users, their roles by project (`EVERYWHERE` counts as a project), and sign-ins in progress."""

    async def add(self, user: UserRecord) -> bool:
        """Store a user. Return False, and store nothing, if the name is taken."""

    async def page(self, *, name: str | None, limit: int, cursor: str | None) -> Page[UserView]:
        """Return users by name; only the user called `name`, if given."""

    async def lock(self, name: str) -> UserRecord:
        """Return a user, locked. Raise NotFound if there is none of that name."""

    async def save(self, user: UserRecord) -> None:
        """Store all fields of a locked user."""

    async def delete(self, user_id: str) -> None:
        """Remove a user with their roles and tokens."""

    async def roles(self, user_id: str) -> dict[str, Role]:
        """Return the roles of a user, by project."""

    async def put_role(self, user_id: str, project: str, role: Role) -> None:
        """Give a user a role in a project, replacing the present one."""

    async def remove_role(self, user_id: str, project: str) -> bool:
        """Remove a user's role in a project. Return True if the user had one."""

    async def lock_admins(self) -> frozenset[str]:
        """Return the ids of enabled users who are admins everywhere.

        Other callers wait until the transaction ends.
        """

    async def begin_login(self, login: Login) -> None:
        """Store a login until the browser returns."""

    async def take_login(self, state_sha256: str) -> Login | None:
        """Return the login of this state and delete it."""

    async def account(self, claims: Claims) -> Account | None:
        """Return the user bound to the subject, or else the user of that name, locked."""

    async def admit(self, account: Account, roles: Mapping[str, Role], now: datetime) -> None:
        """Store an account: a new one, or an existing one that is now bound to its subject.

        Add the roles in projects where it has none.
        """


class Projects(Protocol):
    """Projects with their quotas."""

    async def page(
        self, names: frozenset[str] | None, now: datetime, *, limit: int, cursor: str | None
    ) -> Page[ProjectView]:
        """Return projects by name, those in `names` (None: all), with the slots that they hold and their
        spending in the month of `now`.
        """

    async def lock(self, name: str) -> ProjectRecord | None:
        """Return a project, locked for a change, or None if it does not exist."""

    async def exists(self, name: str) -> bool:
        """Return True if the project exists, and keep it from deletion until the transaction ends."""

    async def save(self, project: ProjectRecord) -> None:
        """Insert or change a project row."""

    async def delete(self, name: str) -> list[str]:
        """Remove a locked project with its members, robots' tokens and secrets.

        If it has live jobs or budgets, remove nothing and return their names.
        """
