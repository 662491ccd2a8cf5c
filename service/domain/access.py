"""Who may do what, as a rule over roles: pure, and the only place that knows which role is more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.identity import EVERYWHERE, Role
from service.domain.errors import Forbidden, NotFound

_ORDER = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN)


def allows(held: Role | None, wanted: Role) -> bool:
    """Whether who holds a role may do what `wanted` is needed for."""
    return held is not None and _ORDER.index(held) >= _ORDER.index(wanted)


def lesser(one: Role, other: Role) -> Role:
    """The one of two roles that may less."""
    return other if allows(one, other) else one


def greater(one: Role | None, other: Role | None) -> Role | None:
    """The one of two roles that may more."""
    if one is None or other is None:
        return one or other
    return one if allows(one, other) else other


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever a request comes from. `roles` are what the token may that was shown, by project, `EVERYWHERE` for all of them and the cluster."""

    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    user_id: str | None = None
    token_id: str | None = None
    expires_at: datetime | None = None
    token_role: Role | None = None
    """The most that the token may which was shown; None: all that its user may."""
    token_project: str = EVERYWHERE
    """Where that token may anything at all."""

    @property
    def key(self) -> str:
        """What tells them from all others, whatever they are called."""
        return f"user {self.user_id}" if self.user_id is not None else f"token {self.token_id}"

    def role_in(self, project: str) -> Role | None:
        """What they are in a project."""
        return greater(self.roles.get(project), self.roles.get(EVERYWHERE))

    def may(self, role: Role, project: str = EVERYWHERE) -> bool:
        """Whether they may do what the role is needed for, in the project, or (by default) everywhere."""
        return allows(self.role_in(project), role)

    def projects(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """The projects in which they have the role or more; None for all of them, those that come tomorrow too."""
        if self.may(role):
            return None
        return frozenset(
            project for project, held in self.roles.items() if project != EVERYWHERE and allows(held, role)
        )

    def require(self, role: Role, project: str = EVERYWHERE) -> None:
        """Let only those pass who have the role in the project.

        Raises:
            NotFound: they may not even know that the project exists.
            Forbidden: they may look, but not do this.
        """
        held = self.role_in(project)
        if held is None and project != EVERYWHERE:
            raise NotFound(f"no project is called {project!r}, or you are not a member of it.")
        if not allows(held, role):
            where = "everywhere" if project == EVERYWHERE else f"in project {project}"
            has = f"is {held} there" if held else "has no role there"
            raise Forbidden(
                f"this needs the role {role} {where}, and {self.name} {has}; ask an admin for it (headway whoami)."
            )


def narrowed(roles: Mapping[str, Role], role: Role | None, project: str) -> dict[str, Role]:
    """What a token can do of what its user can: at most `role`, and in `project` alone unless that is `EVERYWHERE`."""
    if project == EVERYWHERE:
        kept = dict(roles)
    else:
        held = greater(roles.get(project), roles.get(EVERYWHERE))
        kept = {} if held is None else {project: held}
    return kept if role is None else {name: lesser(held, role) for name, held in kept.items()}


def bounds_of_own(maker: Principal, role: Role | None, project: str) -> tuple[Role | None, str]:
    """Role and project of a token that somebody makes for themselves: what they ask for, and never more than the token that
    they show for it, whatever they become later.

    Raises:
        NotFound: they have no role in the project.
    """
    if project == EVERYWHERE:
        project = maker.token_project
    else:
        maker.require(Role.VIEWER, project)
    if role is None or maker.token_role is None:
        return role or maker.token_role, project
    return lesser(role, maker.token_role), project


def may_manage_token(caller: Principal, *, token_id: str, user_id: str | None, project: str) -> bool:
    """Whether they may see and revoke a token: their own, a robot's of a project of theirs, or, as admin, anybody's."""
    own = token_id == caller.token_id or (user_id is not None and user_id == caller.user_id)
    robot = user_id is None and caller.may(Role.ADMIN, project)
    return own or robot or caller.may(Role.ADMIN)
