"""Who may do what, as it is kept: ports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from headway.contract.identity import EVERYWHERE, ProjectQuota, ProjectView, Role, TokenView, UserView
from headway.contract.jobs import Page


def session_of_token(token_id: str) -> str:
    """What `TokenRecord.session` is where a browser signed in with a token."""
    return f"token {token_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token as stored, without the token."""

    id: str
    name: str
    user_id: str | None
    """None for a robot's."""
    role: Role | None
    """The most that it may; None: all that its user may."""
    project: str = EVERYWHERE
    session: str | None = None
    """Where a browser signed in with it; None for a token that somebody carries."""
    parent_id: str | None = None
    """The token that was shown to make this one."""
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """A token with what is known of its user. `roles` are the user's, by project."""

    token: TokenRecord
    user_name: str | None = None
    disabled_at: datetime | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A person as stored. `issuer` and `subject` are who an identity provider says that they are, once they signed in there."""

    id: str
    name: str
    issuer: str | None = None
    subject: str | None = None
    created_at: datetime
    last_seen_at: datetime | None = None
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRecord:
    """A project as stored."""

    name: str
    description: str = ""
    quota: ProjectQuota = field(default_factory=ProjectQuota)
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """Whose tokens are listed: a user's own, the one that was shown, and robots' of `projects` (None: everybody's)."""

    user_id: str | None
    token_id: str | None
    projects: frozenset[str] | None


class Bearers(Protocol):
    """Tokens as they are shown."""

    async def of_digest(self, token_sha256: str) -> Bearer | None:
        """Whose token it is, be it revoked or expired."""
        ...

    async def of_digests(self, tokens_sha256: Collection[str]) -> dict[str, Bearer]:
        """Whose tokens they are, by digest, without those that nobody knows; in one statement."""
        ...

    async def used(self, at: Mapping[str, datetime], at_most_every_s: float) -> None:
        """Note when tokens, by id, and their users were last seen; not again within `at_most_every_s`."""
        ...


class Tokens(Protocol):
    """Token rows."""

    async def add(self, token: TokenRecord, token_sha256: str) -> bool:
        """Store a token. One that has its id, was never used and is the same otherwise gets the new digest in place of its
        own. False, and nothing stored, if there is another one with the id.
        """
        ...

    async def lock(self, token_id: str) -> TokenRecord:
        """A token, locked. Raises NotFound."""
        ...

    async def revoke(self, token_id: str, now: datetime, *, family: bool = False) -> None:
        """It works no more, nor do sessions that were begun with it; with `family`, nor does any token that was made with these.
        Revoked again, it stays revoked since the first time.
        """
        ...


class Users(Protocol):
    """People."""

    async def add(self, user: UserRecord) -> bool:
        """Store a person; False, and nothing stored, if somebody has the name."""
        ...

    async def lock(self, name: str) -> UserRecord:
        """Somebody, locked. Raises NotFound."""
        ...

    async def save(self, user: UserRecord) -> None:
        """Store somebody who is locked."""
        ...

    async def delete(self, user_id: str) -> None:
        """Remove somebody with their roles and tokens."""
        ...


class Members(Protocol):
    """Roles of people, by project; `EVERYWHERE` is one."""

    async def roles(self, user_id: str) -> dict[str, Role]:
        """Somebody's roles."""
        ...

    async def put(self, user_id: str, project: str, role: Role) -> None:
        """Give somebody a role in a project, in place of the one that they have there."""
        ...

    async def remove(self, user_id: str, project: str) -> bool:
        """Take somebody's role in a project away; whether they had one."""
        ...

    async def lock_admins(self) -> frozenset[str]:
        """Ids of people who are admins everywhere and not disabled. Who asks next waits until the transaction ends."""
        ...


class Projects(Protocol):
    """Project rows."""

    async def lock(self, name: str) -> ProjectRecord | None:
        """A project, locked for a change of it; None where there is none."""
        ...

    async def exists(self, name: str) -> bool:
        """Whether there is such a project; if so, it is not removed before the transaction ends."""
        ...

    async def save(self, project: ProjectRecord) -> None:
        """Insert, or change."""
        ...

    async def delete(self, name: str) -> list[str]:
        """Remove a locked project with its members, robots' tokens and secrets, unless jobs of it are live, or budgets are
        set for it: their names are returned then, and nothing is removed.
        """
        ...


class AccessQueries(Protocol):
    """Who may do what, as the API shows it."""

    async def tokens(
        self, seen: TokensSeen, *, now: datetime, limit: int, cursor: str | None
    ) -> Page[TokenView]:
        """Tokens that work, newest first."""
        ...

    async def users(self, *, name: str | None, limit: int, cursor: str | None) -> Page[UserView]:
        """People by name; only the one called `name`, if given."""
        ...

    async def projects(
        self, names: frozenset[str] | None, now: datetime, *, limit: int, cursor: str | None
    ) -> Page[ProjectView]:
        """Projects by name, those of `names` (None: all), with what they hold, and have spent in the month of `now`."""
        ...
