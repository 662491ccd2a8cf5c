"""Access rules over roles. This module alone defines the order of the roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.shared.errors import Forbidden, NotFound

_ORDER = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN)


def allows(held: Role | None, wanted: Role) -> bool:
    """Return True if a holder of the role `held` may do what requires `wanted`."""
    return held is not None and _ORDER.index(held) >= _ORDER.index(wanted)


def lesser(one: Role, other: Role) -> Role:
    """Return the lesser of two roles."""
    return other if allows(one, other) else one


def greater(one: Role | None, other: Role | None) -> Role | None:
    """Return the greater of two roles; None counts as no role."""
    if one is None or other is None:
        return one or other
    return one if allows(one, other) else other


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated sender of a request.

    `roles` maps projects to the roles that the request's token grants. `EVERYWHERE` stands for all projects
    and the cluster.
    """

    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    user_id: str | None = None
    token_id: str | None = None
    expires_at: datetime | None = None
    token_role: Role | None = None
    """Upper bound on the role that the token grants; None grants all roles of its user."""
    token_project: str = EVERYWHERE
    """Project to which the token is limited; `EVERYWHERE` for no limit."""

    @property
    def key(self) -> str:
        """Key that identifies the principal uniquely, whatever its name."""
        return f"user {self.user_id}" if self.user_id is not None else f"token {self.token_id}"

    def role_in(self, project: str) -> Role | None:
        """Return the principal's role in a project; None without one."""
        return greater(self.roles.get(project), self.roles.get(EVERYWHERE))

    def may(self, role: Role, project: str = EVERYWHERE) -> bool:
        """Return True if the principal has the role or a greater one in the project, by default everywhere."""
        return allows(self.role_in(project), role)

    def projects(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """Return the projects in which the principal has at least this role; None for all present and future
        projects.
        """
        if self.may(role):
            return None
        return frozenset(
            project for project, held in self.roles.items() if project != EVERYWHERE and allows(held, role)
        )

    def require(self, role: Role, project: str = EVERYWHERE) -> None:
        """Raise an error unless the principal has the role in the project.

        Raises:
            NotFound: the principal may not even know that the project exists.
            Forbidden: the principal may see the project but lacks the role.
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
    """Return the part of a user's roles that a token grants.

    The token grants at most `role`, and only in `project` unless that is `EVERYWHERE`.
    """
    if project == EVERYWHERE:
        kept = dict(roles)
    else:
        held = greater(roles.get(project), roles.get(EVERYWHERE))
        kept = {} if held is None else {project: held}
    return kept if role is None else {name: lesser(held, role) for name, held in kept.items()}


def own_token_bounds(maker: Principal, role: Role | None, project: str) -> tuple[Role | None, str]:
    """Return the role and the project of a token that users create for themselves.

    The result is the requested role and project, but never more than the presented token grants, whatever
    roles the user gets later.

    Raises:
        NotFound: the user has no role in the project.
    """
    if project == EVERYWHERE:
        project = maker.token_project
    else:
        maker.require(Role.VIEWER, project)
    if role is None or maker.token_role is None:
        return role or maker.token_role, project
    return lesser(role, maker.token_role), project


def may_manage_token(caller: Principal, *, token_id: str, user_id: str | None, project: str) -> bool:
    """Return True if the caller may see and revoke a token.

    A caller may manage their own tokens. An admin of a project may manage the tokens of its robots; an admin
    of the cluster may manage all tokens.
    """
    own = token_id == caller.token_id or (user_id is not None and user_id == caller.user_id)
    robot = user_id is None and caller.may(Role.ADMIN, project)
    return own or robot or caller.may(Role.ADMIN)
