"""Access control: users, projects, tokens, secrets and the audit log."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headway.contract.spec import NAME_PATTERN

EVERYWHERE = "*"
"""Scope of all projects and of the cluster itself."""
USER_NAME_PATTERN = r"^[^\s/\x00-\x1f]{1,254}$"
TOKEN_PREFIX = "hw_"  # noqa: S105 - of tokens
TOKEN_PATTERN = rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}"
"""Pattern of the tokens that Headway creates: a prefix that secret scanners detect, and 256 random bits."""
Scope = Annotated[str, Field(pattern=rf"^\*$|{NAME_PATTERN}")]
"""Name of a project, or `EVERYWHERE`."""


class Role(StrEnum):
    """Roles in a project, or everywhere. Each includes the rights of the roles before it.

    A viewer reads. A user submits and controls jobs, and uses secrets. An operator maintains hosts
    (everywhere) and controls the jobs of all users. An admin grants roles and sets quotas, budgets and
    secrets.
    """

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WhoAmI(BaseModel):
    """The bearer of the presented token. `roles` are by project, `*` for everywhere."""

    name: str
    user_id: str | None
    token_id: str | None
    roles: dict[str, Role]
    expires_at: datetime | None


class TokenRequest(_Request):
    """A request for a new token: a personal one, or (`robot`) one for a program, with `role` in `project`.

    A personal token has the rights of its user, restricted to `project` if that is given, and to at most
    `role`.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Role | None = None
    project: Scope = EVERYWHERE
    robot: bool = False
    expires_in_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 30 * 86_400


class TokenView(BaseModel):
    """A token without its secret value, as listings show it."""

    id: str
    name: str
    user: str | None
    """User of the token; None for a robot's."""
    role: Role | None
    project: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    made_with: str | None = None
    """Id of the token that authorised the creation; None: a sign-in, or the service's own token."""


class NewToken(TokenView):
    """A token just created. Only this answer contains `token`."""

    token: str


class UserRequest(_Request):
    """A person who may sign in. `name` is the e-mail address or user name from the identity provider."""

    name: Annotated[str, Field(pattern=USER_NAME_PATTERN)]
    role: Role | None = None
    """Role everywhere; None: no rights until the person becomes a member of a project."""


class UserPatch(_Request):
    """Changes of a user; absent fields stay as they are. `role` is the role everywhere, and None removes it."""

    role: Role | None = None
    disabled: bool = False


class UserView(BaseModel):
    """A user. `roles` are by project, `*` for everywhere."""

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
    """Guarantee and limits of a project; None: no limit of this kind.

    `slots` are guaranteed: when the project needs them, jobs of other projects that borrow them shrink or are
    preempted. `max_slots` limits the slots held, borrowed ones included. `weight` is the project's share of
    slots without guarantee.
    """

    model_config = ConfigDict(frozen=True)

    slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    usd_per_month: Annotated[float, Field(ge=0, le=1e9)] | None = None
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0


class ProjectRequest(_Request):
    """Settings of a project."""

    description: Annotated[str, Field(max_length=500)] = ""
    quota: ProjectQuota = ProjectQuota()


class ProjectView(BaseModel):
    """A project with its members and its present use."""

    name: str
    description: str
    quota: ProjectQuota
    members: dict[str, Role]
    """Roles by user name."""
    slots_held: int
    slots_borrowed: int
    usd_this_month: float
    created_at: datetime
    slots_lent: int
    """Slots of its guarantee that other projects hold now."""
    used_slot_h: float
    """Slot-hours used by its jobs, decayed: use that is one half-life old counts half."""
    share_used: float
    """Its share of the decayed use of all projects."""
    share_due: float
    """Its share of the weights of all projects that have used something or hold slots."""


class JoinTokenRequest(_Request):
    """A request for a token with which agents join, valid for `uses` uses."""

    name: Annotated[str, Field(max_length=100)] = ""
    uses: Annotated[int, Field(ge=1, le=10_000)] = 1
    expires_in_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400


class JoinTokenView(BaseModel):
    """A join token without its secret value, as listings show it."""

    id: str
    name: str
    uses_left: int
    created_by: str
    created_at: datetime
    expires_at: datetime


class NewJoinToken(JoinTokenView):
    """A join token just created. Only this answer contains `token`."""

    token: str


class SecretRequest(_Request):
    """The value of a secret. No answer of the API contains it."""

    value: Annotated[SecretStr, Field(min_length=1, max_length=65_536)]


class SecretView(BaseModel):
    """A secret without its value. Jobs of its project refer to it by name."""

    project: str
    name: str
    created_by: str
    created_at: datetime
    updated_at: datetime


class AuditView(BaseModel):
    """One change that a user made or was refused, with its actor, action and address."""

    id: int
    at: datetime
    actor: str
    token_id: str | None
    action: str
    """Operation id in the API's description."""
    target: str
    """Path of the changed resource."""
    project: str | None
    status: int
    address: str
    request_id: str
    detail: dict[str, Any] = Field(default_factory=dict)


class SignInView(BaseModel):
    """Sign-in settings of this service; without an identity provider, only tokens work."""

    issuer: str | None
    client_id: str | None
    scopes: list[str] = Field(default_factory=list)


class SignInLink(BaseModel):
    """A link that signs one browser in, once, as the bearer of the token that requested it.

    `url` is relative to the service's address where the service has no TLS.
    """

    url: str
    expires_at: datetime


class SignInRequest(_Request):
    """A request for a token of Headway, with an identity token that the provider issued to a terminal."""

    id_token: Annotated[str, Field(max_length=16_384)]
    name: Annotated[str, Field(min_length=1, max_length=100)] = "login"
