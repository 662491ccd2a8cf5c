"""docs/reference/roles.md: the role that each route requires, from the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.contract.views.identity import Role

_METHODS = ("get", "post", "put", "patch", "delete")
_LEAD = """# Roles and routes

A role includes those before it: viewer, user, operator, admin. The list names the lowest role that may use each route, in the project of the request or
*everywhere*; a role everywhere holds in every project. Objects of projects without a role answer 404, and a role that does not suffice 403.
[Roles and sign-in](../operations/access.md) describes users and roles.
"""
_CALLERS = {
    "join": "an agent with a join token or its node token",
    "sign_storage": "only a rank, with the ticket of its job",
    "download_bundle": "any token, or the node token of an agent",
}


def page(document: dict[str, Any]) -> str:
    """Return the page: each route with the lowest role that may use it, or the callers of a route without a role."""
    of_roles, others = [], []
    for path, method, operation in _operations(document):
        name = f"- `{method.upper()} {path}`"
        role = operation.get("x-headway-role")
        if role is None or role == "any":
            others.append(f"{name}: {_who(path, operation)}")
        else:
            everywhere = " everywhere" if operation["x-headway-reach"] == "everywhere" else ""
            of_roles.append(f"{name}: {Role(role)}{everywhere}")
    return "\n".join([_LEAD, *of_roles, "\n## Routes without a role\n", *others, ""])


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in sorted(document["paths"].items()):
        for method in _METHODS:
            if method in methods:
                yield path, method, methods[method]


def _who(path: str, operation: dict[str, Any]) -> str:
    if operation["operationId"] in _CALLERS:
        return _CALLERS[operation["operationId"]]
    if path.startswith("/api/v1/agents"):
        return "only the agent of that node"
    if path == "/metrics":
        return "`HEADWAY_METRICS_TOKEN`, or a viewer everywhere; anyone with `HEADWAY_METRICS_PUBLIC`"
    return "any token" if "security" in operation else "anyone"
