"""Who is let in when an identity provider says who somebody is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headway.contract.identity import EVERYWHERE, Role
from service.domain.errors import Forbidden

SESSION: Final = timedelta(hours=12)
"""How long a sign-in lasts: a working day."""
LOGIN: Final = timedelta(minutes=10)
"""How long somebody may take at the provider."""
_LONGEST_RETURN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a provider has said of a person, checked. `name` is None where it told none that can be relied upon."""

    issuer: str
    subject: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user, as far as signing in goes. `issuer` and `subject` are None until the first sign-in."""

    id: str
    name: str
    issuer: str | None = None
    subject: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Who becomes what at the first sign-in. Without `default_role` only those come in whom an admin has added by name, and
    `admins`, who may everything everywhere.
    """

    admins: frozenset[str] = frozenset()
    default_role: Role | None = None
    default_project: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Somebody is let in: under this name, for the first time (`binds`) or again, and with these further roles by project."""

    name: str
    binds: bool
    roles: Mapping[str, Role] = field(default_factory=dict)


def admit(claims: Claims, known: Account | None, rules: AdmissionRules) -> Admission:
    """Whether somebody may come in. `known` is the user of that subject, else the one of that name.

    Raises:
        Forbidden: no, and why.
    """
    if known is not None and known.disabled:
        raise Forbidden(f"the user {known.name} is disabled; an admin can enable it (headway user enable).")
    if known is not None and (known.issuer, known.subject) == (claims.issuer, claims.subject):
        return Admission(name=known.name, binds=False)
    if claims.name is None:
        raise Forbidden(
            "the identity provider tells no name of you that can be relied upon: it must send the claim that "
            "HEADWAY_OIDC_NAME_CLAIM says (by default a verified e-mail address)."
        )
    if known is not None and known.subject is not None:
        raise Forbidden(
            f"the user {claims.name} has signed in with another account of the provider before; if that one is "
            "gone for good, an admin can delete the user and add it again."
        )
    roles = {}
    if rules.default_role is not None:
        roles[rules.default_project] = rules.default_role
    if claims.name in rules.admins:
        roles[EVERYWHERE] = Role.ADMIN
    if known is None and not roles:
        raise Forbidden(
            f"nobody has added {claims.name} here; ask an admin for it (headway user add {claims.name})."
        )
    return Admission(name=claims.name, binds=True, roles=roles)


def safe_return(path: str | None) -> str:
    """Where to send somebody after a sign-in: a path of this service, and nowhere else."""
    if path is None or not path.startswith("/") or len(path) > _LONGEST_RETURN:
        return "/"
    # Browsers take // and /\ for another host, and drop tabs and line ends before they look.
    leaves = path.startswith(("//", "/\\")) or "\\" in path or any(not " " < mark <= "~" for mark in path)
    return "/" if leaves or path.startswith("/auth/") else path
