"""Projects, and who belongs to them."""

from __future__ import annotations

import hashlib
from datetime import datetime

from headway.contract.identity import ProjectQuota, ProjectRequest, ProjectView, Role
from service.domain.access import Principal
from service.domain.errors import Changed, Forbidden, InUse, NotFound
from service.usecases.identity_ports import ProjectRecord
from service.usecases.ports import Transaction
from service.usecases.records import Bell


def no_project(name: str) -> str:
    """The sentence about a project that is not there."""
    return f"no project is called {name!r}; an admin makes it with `headway project create {name}`"


async def require_project(tx: Transaction, name: str) -> None:
    """Go on only if there is such a project, and keep it until the transaction ends. Raises NotFound."""
    if not await tx.projects.exists(name):
        raise NotFound(f"{no_project(name)}.")


def version_of(project: ProjectRecord | ProjectView) -> str:
    """Names what is set of a project: another setting has another version."""
    said = ProjectRequest(description=project.description, quota=project.quota).model_dump_json()
    return hashlib.sha256(said.encode()).hexdigest()[:16]


async def project_view(tx: Transaction, name: str, now: datetime) -> ProjectView:
    """A project, as the API shows it. Raises NotFound."""
    page = await tx.access_queries.projects(frozenset({name}), now, limit=1, cursor=None)
    if not page.items:
        raise NotFound(f"{no_project(name)}.")
    return page.items[0]


async def put_project(
    tx: Transaction,
    caller: Principal,
    name: str,
    wanted: ProjectRequest,
    *,
    if_version: str | None,
    only_new: bool,
    now: datetime,
) -> bool:
    """Make a project, or set what is set of it; whether it is new. The same once more changes nothing. With `if_version` only
    one that is there, in this version (`*`: in any).

    Raises:
        NotFound: they are no member of it, or there is none, although `if_version` was given.
        Forbidden: only an admin everywhere makes projects and sets their quotas: they are promises at the cost of others.
        Changed: it has another version than `if_version`, or is there although it was to be new.
    """
    caller.require(Role.ADMIN, name)
    known = await tx.projects.lock(name)
    if known is not None and (known.description, known.quota) == (wanted.description, wanted.quota):
        return False
    if known is None and if_version is not None:
        raise NotFound(f"{no_project(name)}.")
    if known is None:
        _require_everywhere(caller, "projects are made by")
    elif known.quota != wanted.quota:
        _require_everywhere(caller, "quotas are set by")
    if known is not None and only_new:
        raise Changed(f"there is a project called {name} already; choose another name, or change that one.")
    if known is not None and if_version is not None and if_version not in {"*", version_of(known)}:
        raise Changed(f"project {name} was changed since you have looked at it; look again.")
    await tx.projects.save(
        ProjectRecord(
            name=name,
            description=wanted.description,
            quota=wanted.quota,
            created_at=now if known is None else known.created_at,
        )
    )
    if wanted.quota != (ProjectQuota() if known is None else known.quota):
        tx.ring(Bell.ROUND)
    return known is None


def _require_everywhere(caller: Principal, what: str) -> None:
    if not caller.may(Role.ADMIN):
        raise Forbidden(f"{what} an admin of everything, and {caller.name} is none; ask one for it.")


async def delete_project(tx: Transaction, name: str) -> None:
    """Remove a project with its members, secrets and robots' tokens. Jobs of it that have ended stay for their time.

    Raises:
        NotFound: there is none of that name.
        InUse: jobs of it have not ended, or budgets are set for it.
    """
    if await tx.projects.lock(name) is None:
        raise NotFound(f"{no_project(name)}.")
    needed_by = await tx.projects.delete(name)
    if needed_by:
        raise InUse(
            f"project {name} is needed by {', '.join(needed_by)}; cancel its jobs and remove its budgets first."
        )
    tx.ring(Bell.ACCESS)


async def put_member(tx: Transaction, project: str, user: str, role: Role) -> None:
    """Give a user a role in a project, in place of the one that they have there.

    Raises:
        NotFound: no such project or user.
    """
    await require_project(tx, project)
    await tx.members.put((await tx.users.lock(user)).id, project, role)
    tx.ring(Bell.ACCESS)


async def remove_member(tx: Transaction, project: str, user: str) -> None:
    """Take a user's role in a project away.

    Raises:
        NotFound: no such user, or no member of it.
    """
    known = await tx.users.lock(user)
    if not await tx.members.remove(known.id, project):
        raise NotFound(f"{user} is no member of project {project}.")
    tx.ring(Bell.ACCESS)
