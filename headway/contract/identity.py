"""Who may do what: people, projects, tokens, secrets, and the record of what they did."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headway.contract.spec import NAME_PATTERN

EVERYWHERE = "*"
"""In place of a project: all of them, and the cluster itself."""
USER_NAME_PATTERN = r"^[^\s/\x00-\x1f]{1,254}$"
TOKEN_PREFIX = "hw_"  # noqa: S105 - of tokens
TOKEN_PATTERN = rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}"
"""Of the tokens that Headway makes: 256 random bits behind a prefix that scanners and our own redaction find."""
Scope = Annotated[str, Field(pattern=rf"^\*$|{NAME_PATTERN}")]
"""A project's name, or `EVERYWHERE`."""


class Role(StrEnum):
    """What somebody may do in a project, or everywhere; each may all that those before may.

    A viewer reads. A user submits and steers jobs, and uses secrets. An operator looks after hosts (everywhere), and steers
    everybody's jobs. An admin decides who may do what, on quotas, budgets and secrets.
    """

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WhoAmI(BaseModel):
    """The bearer of the token that was shown. `roles` are by project, `*` for everywhere."""

    name: str
    user_id: str | None
    token_id: str | None
    roles: dict[str, Role]
    expires_at: datetime | None


class TokenRequest(_Request):
    """A new token: for oneself, or (`robot`) for a program that belongs to nobody and has `role` in `project`.

    One's own token can do what one can oneself, in `project` alone if that is given, and at most what `role` allows.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Role | None = None
    project: Scope = EVERYWHERE
    robot: bool = False
    expires_in_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 30 * 86_400


class TokenView(BaseModel):
    """A token as it is listed: never the token itself."""

    id: str
    name: str
    user: str | None
    """None for a robot's."""
    role: Role | None
    project: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    made_with: str | None = None
    """The id of the token that was shown to make this one; None: a sign-in, or the service's own token."""


class NewToken(TokenView):
    """A token that was just made; `token` is shown this once."""

    token: str


class UserRequest(_Request):
    """A person who may sign in: `name` is the e-mail address or user name that the identity provider tells."""

    name: Annotated[str, Field(pattern=USER_NAME_PATTERN)]
    role: Role | None = None
    """What they may do everywhere; None: nothing, until they are made a member of a project."""


class UserPatch(_Request):
    """What is changed of a person: only what is given. `role` is that everywhere, None takes it away."""

    role: Role | None = None
    disabled: bool = False


class UserView(BaseModel):
    """A person. `roles` are by project, `*` for everywhere."""

    id: str
    name: str
    roles: dict[str, Role]
    created_at: datetime
    last_seen_at: datetime | None
    disabled_at: datetime | None


class MemberRequest(_Request):
    """The role of a user in a project."""

    role: Role


class ProjectQuota(BaseModel):
    """What a project is promised and where it ends; None: no such limit.

    `slots` are guaranteed: others who have borrowed them shrink, and give way if need be, as soon as they are wanted.
    `max_slots` bounds what the project holds, borrowed slots included. `weight` is its share of what nobody was promised.
    """

    model_config = ConfigDict(frozen=True)

    slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    usd_per_month: Annotated[float, Field(ge=0, le=1e9)] | None = None
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0


class ProjectRequest(_Request):
    """What is set of a project."""

    description: Annotated[str, Field(max_length=500)] = ""
    quota: ProjectQuota = ProjectQuota()


class ProjectView(BaseModel):
    """A project, who belongs to it, and what it holds now."""

    name: str
    description: str
    quota: ProjectQuota
    members: dict[str, Role]
    """By the user's name."""
    slots_held: int
    slots_borrowed: int
    usd_this_month: float
    created_at: datetime
    slots_lent: int = 0
    """Of its guarantee, what others hold now."""
    used_slot_h: float = 0.0
    """Slot-hours that its jobs have had; those that lie back by a half-life count half."""
    share_used: float = 0.0
    """Its part of what all projects have used, counted like that."""
    share_due: float = 0.0
    """Its part of the weights of all projects that have used something, or hold slots."""


class JoinTokenRequest(_Request):
    """A token with which agents join, `uses` times."""

    name: Annotated[str, Field(max_length=100)] = ""
    uses: Annotated[int, Field(ge=1, le=10_000)] = 1
    expires_in_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400


class JoinTokenView(BaseModel):
    """A join token as it is listed."""

    id: str
    name: str
    uses_left: int
    created_by: str
    created_at: datetime
    expires_at: datetime


class NewJoinToken(JoinTokenView):
    """A join token that was just made; `token` is shown this once."""

    token: str


class SecretRequest(_Request):
    """A secret's value. It is never shown again."""

    value: Annotated[SecretStr, Field(min_length=1, max_length=65_536)]


class SecretView(BaseModel):
    """A secret without its value. Jobs of its project name it."""

    project: str
    name: str
    created_by: str
    created_at: datetime
    updated_at: datetime


class AuditView(BaseModel):
    """One change that somebody made or was refused: who, what, from where."""

    id: int
    at: datetime
    actor: str
    token_id: str | None
    action: str
    """The operation's id in the API's description."""
    target: str
    """The path of what was changed."""
    project: str | None
    status: int
    address: str
    request_id: str
    detail: dict[str, Any] = Field(default_factory=dict)


class SignInView(BaseModel):
    """How people sign in here; without a provider there are only tokens."""

    issuer: str | None
    client_id: str | None
    scopes: list[str] = Field(default_factory=list)


class SignInRequest(_Request):
    """An identity token that the provider gave to a command line, in exchange for a token of Headway."""

    id_token: Annotated[str, Field(max_length=16_384)]
    name: Annotated[str, Field(min_length=1, max_length=100)] = "login"
