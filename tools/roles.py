"""The page that says which role each route needs, from the API's own description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.contract.identity import Role

_METHODS = ("get", "post", "put", "patch", "delete")
_LEAD = """# Roles and routes

Made from the API's description (`x-headway-role`, `x-headway-reach`). A role may all that those left of it may. *In a project*: in
the project that the request is about; whoever has the role everywhere has it in each. What is of a project that the caller is no
member of answers 404, as if it were not there; a role that does not suffice answers 403. [security.md](../security.md) says who is who.
"""
_OTHERS = """
## Without a role

| route | who may |
| --- | --- |
"""


def page(document: dict[str, Any]) -> str:
    """Markdown: a row for each route, a column for each role."""
    roles = list(Role)
    lines = [_LEAD, f"| route | {' | '.join(roles)} | where |", f"| --- |{' --- |' * (len(roles) + 1)}"]
    others = []
    for path, method, operation in _operations(document):
        name = f"`{method.upper()} {path}`"
        role = operation.get("x-headway-role")
        if role is None or role == "any":
            others.append(f"| {name} | {_who(path, operation)} |")
            continue
        first = roles.index(Role(role))
        marks = " | ".join("yes" if index >= first else "" for index in range(len(roles)))
        where = "everywhere" if operation["x-headway-reach"] == "everywhere" else "in a project"
        lines.append(f"| {name} | {marks} | {where} |")
    return "\n".join(lines) + "\n" + _OTHERS + "\n".join(others) + "\n"


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in sorted(document["paths"].items()):
        for method in _METHODS:
            if method in methods:
                yield path, method, methods[method]


def _who(path: str, operation: dict[str, Any]) -> str:
    if operation["operationId"] == "join":
        return "an agent with a join token, or with its node's own"
    if path.startswith("/api/v1/agents"):
        return "the agent of that node alone"
    return "whoever has a token" if "security" in operation else "anybody"
