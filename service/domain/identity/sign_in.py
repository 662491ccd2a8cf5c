"""Admission of users who sign in through an identity provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.shared.errors import Forbidden

SESSION: Final = timedelta(hours=12)
"""Lifetime of a sign-in: a working day."""
LOGIN: Final = timedelta(minutes=10)
"""Time limit for a sign-in at the provider."""
LINK: Final = timedelta(minutes=2)
"""Lifetime of a link that signs a browser in."""
_LONGEST_RETURN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The verified claims of a provider about a person. `name` is None if the provider gave no reliable name."""

    issuer: str
    subject: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The part of a user account that sign-in needs. `issuer` and `subject` are None until the first sign-in."""

    id: str
    name: str
    issuer: str | None = None
    subject: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Rules for the roles that a person gets at the first sign-in.

    `admins` get the role admin everywhere. Without `default_role` only `admins` and users that an admin added
    by name may sign in.
    """

    admins: frozenset[str] = frozenset()
    default_role: Role | None = None
    default_project: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInAdmission:
    """The admission of a person under this name, with further roles by project. `binds` marks the first
    sign-in.
    """

    name: str
    binds: bool
    roles: Mapping[str, Role] = field(default_factory=dict)


def admit(claims: Claims, known: Account | None, rules: AdmissionRules) -> SignInAdmission:
    """Return the admission of a person. `known` is the user with that subject, otherwise the user with that
    name.

    Raises:
        Forbidden: the person may not sign in; the message gives the reason.
    """
    if known is not None and known.disabled:
        raise Forbidden(f"the user {known.name} is disabled; an admin can enable it (headway user enable).")
    if known is not None and (known.issuer, known.subject) == (claims.issuer, claims.subject):
        return SignInAdmission(name=known.name, binds=False)
    if claims.name is None:
        raise Forbidden(
            "the identity provider sent no verified name for you: it must send the claim named by "
            "HEADWAY_OIDC_NAME_CLAIM (by default a verified e-mail address)."
        )
    if known is not None and known.subject is not None:
        raise Forbidden(
            f"the user {claims.name} has signed in with another account of the provider before; if that account "
            "is permanently gone, an admin can delete the user and add it again."
        )
    roles = {}
    if rules.default_role is not None:
        roles[rules.default_project] = rules.default_role
    if claims.name in rules.admins:
        roles[EVERYWHERE] = Role.ADMIN
    if known is None and not roles:
        raise Forbidden(
            f"there is no user {claims.name} here; ask an admin to add you (headway user add {claims.name})."
        )
    return SignInAdmission(name=claims.name, binds=True, roles=roles)


def safe_return(path: str | None) -> str:
    """Return the path to open after a sign-in: a path of this service, otherwise `/`."""
    if path is None or not path.startswith("/") or len(path) > _LONGEST_RETURN:
        return "/"
    # Browsers treat // and /\ as another host, and strip tabs and line breaks before they parse the path.
    leaves = path.startswith(("//", "/\\")) or "\\" in path or any(not " " < mark <= "~" for mark in path)
    return "/" if leaves or path.startswith("/auth/") else path
