"""Projects and their members."""

from __future__ import annotations

import hashlib
from datetime import datetime

from headway.contract.views.identity import ProjectQuota, ProjectRequest, ProjectView, Role
from service.domain.identity.access import Principal
from service.domain.shared.errors import ChangedMeanwhile, Forbidden, InUse, NotFound
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.identity import ProjectRecord
from service.usecases.ports.transactions import Transaction


def no_project(name: str) -> str:
    """Return the message about a project that does not exist."""
    return f"no project is called {name!r}; an admin creates it with `headway project create {name}`"


async def require_project(tx: Transaction, name: str) -> None:
    """Raise NotFound unless the project exists. Keep it from deletion until the transaction ends."""
    if not await tx.projects.exists(name):
        raise NotFound(f"{no_project(name)}.")


def version_of(project: ProjectRecord | ProjectView) -> str:
    """Return the version of a project's settings, a digest of them."""
    settings = ProjectRequest(description=project.description, quota=project.quota).model_dump_json()
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


async def project_view(tx: Transaction, name: str, now: datetime) -> ProjectView:
    """Return a project as the API shows it. Raise NotFound if it does not exist."""
    page = await tx.projects.page(frozenset({name}), now, limit=1, cursor=None)
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
    """Create a project, or change its settings. Return True if it is new.

    Equal settings change nothing. With `if_version`, change only an existing project in this version (`*`: in
    any).

    Raises:
        NotFound: the caller is not a member of it, or it does not exist although `if_version` was given.
        Forbidden: only an admin everywhere creates projects and sets quotas, since quotas are paid for by
            other projects.
        ChangedMeanwhile: it has another version than `if_version`, or it exists although it was to be new.
    """
    caller.require(Role.ADMIN, name)
    known = await tx.projects.lock(name)
    if known is not None and (known.description, known.quota) == (wanted.description, wanted.quota):
        return False
    if known is None and if_version is not None:
        raise NotFound(f"{no_project(name)}.")
    if known is None:
        _require_everywhere(caller, "creates projects")
    elif known.quota != wanted.quota:
        _require_everywhere(caller, "sets quotas")
    if known is not None and only_new:
        raise ChangedMeanwhile(
            f"a project named {name} exists already; choose another name, or change that project."
        )
    if known is not None and if_version is not None and if_version not in {"*", version_of(known)}:
        raise ChangedMeanwhile(
            f"project {name} was changed since you read it; read it again and repeat your change."
        )
    await tx.projects.save(
        ProjectRecord(
            name=name,
            description=wanted.description,
            quota=wanted.quota,
            created_at=now if known is None else known.created_at,
        )
    )
    if wanted.quota != (ProjectQuota() if known is None else known.quota):
        tx.wake(WakeUp.ROUND)
    return known is None


def _require_everywhere(caller: Principal, what: str) -> None:
    if not caller.may(Role.ADMIN):
        raise Forbidden(
            f"only an admin of the whole cluster {what}, and {caller.name} is not one; ask an admin for it."
        )


async def delete_project(tx: Transaction, name: str) -> None:
    """Remove a project with its members, secrets and robots' tokens.

    Its ended jobs stay for their retention.

    Raises:
        NotFound: there is no project of that name.
        InUse: it has jobs that have not ended, or budgets.
    """
    if await tx.projects.lock(name) is None:
        raise NotFound(f"{no_project(name)}.")
    needed_by = await tx.projects.delete(name)
    if needed_by:
        raise InUse(
            f"project {name} is needed by {', '.join(needed_by)}; cancel its jobs and remove its budgets first."
        )
    tx.wake(WakeUp.ACCESS)


async def put_member(tx: Transaction, project: str, user: str, role: Role) -> None:
    """Give a user a role in a project, replacing the present one. Raise NotFound if either does not exist."""
    await require_project(tx, project)
    await tx.users.put_role((await tx.users.lock(user)).id, project, role)
    tx.wake(WakeUp.ACCESS)


async def remove_member(tx: Transaction, project: str, user: str) -> None:
    """Remove a user's role in a project. Raise NotFound if the user does not exist or is not a member."""
    known = await tx.users.lock(user)
    if not await tx.users.remove_role(known.id, project):
        raise NotFound(f"{user} is not a member of project {project}.")
    tx.wake(WakeUp.ACCESS)
