"""Tables of tokens, users and projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns, usd
from headway.contract.values.quantities import duration
from headway.contract.views.identity import EVERYWHERE, ProjectView, Role, TokenView, UserView


def roles_text(roles: Mapping[str, Role]) -> str:
    """Return roles as text, such as `admin everywhere, user in vision`."""
    return ", ".join(
        f"{role} everywhere" if project == EVERYWHERE else f"{role} in {project}"
        for project, role in sorted(roles.items())
    )


def until_text(expires_at: datetime | None, now: datetime) -> str:
    """Return the remaining lifetime of a token, such as `for 29d23h`."""
    if expires_at is None:
        return "until it is revoked"
    return f"for {duration((expires_at - now).total_seconds())}"


def _ago(at: datetime | None, now: datetime) -> str:
    return "never" if at is None else f"{duration((now - at).total_seconds())} ago"


def tokens_table(tokens: Sequence[TokenView], now: datetime) -> Table:
    """Return the table of `headway token ls`."""
    table = columns("ID", "NAME", "WHOSE", "AT MOST", "WHERE", "WORKS", "USED", "MADE WITH")
    for one in tokens:
        table.add_row(
            one.id,
            one.name,
            one.user or "robot",
            one.role or "-",
            "everywhere" if one.project == EVERYWHERE else one.project,
            until_text(one.expires_at, now),
            _ago(one.last_used_at, now),
            one.made_with or "-",
        )
    return table


def users_table(users: Sequence[UserView], now: datetime) -> Table:
    """Return the table of `headway user ls`."""
    table = columns("NAME", "STATE", "SEEN", fold=["ROLES"])
    for one in users:
        state = Text("disabled", style="yellow") if one.disabled_at is not None else Text("enabled")
        table.add_row(one.name, state, _ago(one.last_seen_at, now), roles_text(one.roles) or "none")
    return table


def projects_table(projects: Sequence[ProjectView]) -> Table:
    """Return the table of `headway project ls`."""
    slots = (">SLOTS", ">BORROWED", ">PROMISED", ">AT MOST")
    table = columns("NAME", *slots, ">THIS MONTH", ">A MONTH", ">WEIGHT", fold=["DESCRIPTION"])
    for one in projects:
        quota = one.quota
        table.add_row(
            one.name,
            str(one.slots_held),
            str(one.slots_borrowed),
            _number(quota.slots),
            _number(quota.max_slots),
            usd(one.usd_this_month),
            usd(quota.usd_per_month),
            f"{quota.weight:g}",
            one.description,
        )
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def project_page(project: ProjectView) -> RenderableType:
    """Return the page of `headway project show`."""
    members = columns("MEMBER", "ROLE")
    for name, role in sorted(project.members.items()):
        members.add_row(name, role)
    lent = f"{project.slots_lent} of its slots are lent to other projects, and return as soon as its jobs need them."
    note = lent if project.quota.slots and project.slots_lent else ""
    used = Text(
        f"Recent use: {project.used_slot_h:,.1f} slot-hours, {project.share_used:.0%} of all; fair share by weight: "
        f"{project.share_due:.0%}. {note}".rstrip()
    )
    none = Text(f"No members. Add one: headway project add-member {project.name} NAME --role user")
    return Group(projects_table([project]), used, Text(), members if project.members else none)
