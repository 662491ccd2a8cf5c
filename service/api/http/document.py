"""The API's description (OpenAPI) for readers and client generators.

It adds to FastAPI's description what FastAPI cannot derive from the routes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI

TAGS: Final = {
    "jobs": "Submit, view and control jobs. For users who train.",
    "sweeps": "Many jobs of one file, which differ in their parameters. For users who train.",
    "cluster": "Decisions of the scheduler and their reasons, the policy, and plans of jobs.",
    "simulations": "What-if simulations of changes, from the live state.",
    "money": "Budgets, and spending by project, job and other groups.",
    "rental": "Prices of machines, and recommendations for a job.",
    "machines": "Rented machines.",
    "nodes": "Hosts and their slots. For operators.",
    "access": "Users, projects, tokens, secrets and the audit log. For admins, and for your own tokens.",
    "bundles": "Folders of code that jobs run.",
    "agents": "Requests of the agents of hosts. Not for users.",
    "health": "Health and metrics of the service.",
}
"""Groups of routes with their audience, in the order of the documentation."""
_PROBLEMS: Final = {
    "401": "The token is missing, wrong, expired or revoked",
    "403": "The role does not allow it",
    "404": "It does not exist, or belongs to a project of which the caller is not a member",
    "422": "A field is wrong; `errors` says which and why",
    "429": "Too many requests; `Retry-After` says when to try again",
    "503": "A store does not answer; `Retry-After` says when to try again",
}
_PROBLEM_TYPE: Final = "application/problem+json"
_PROBLEM_SCHEMA: Final = {"$ref": "#/components/schemas/Problem"}
_ROLE: Final = "x-headway-role"
_REACH: Final = "x-headway-reach"


def describe(app: FastAPI) -> None:
    """Replace the application's description by `described`, computed on first use."""
    found = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = described(found(), examples())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documentation names this way


@lru_cache(maxsize=1)
def examples() -> Mapping[str, Mapping[str, Any]]:
    """Return a working request and its answer by operation, as tests recorded them from the service."""
    found: dict[str, Any] = json.loads(
        files("service.api").joinpath("examples.json").read_text(encoding="utf-8")
    )
    return found


def described(document: dict[str, Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document with ordered tags, all errors of every operation, roles in words, and examples."""
    paths = {
        path: {method: _operation(path, one, known) for method, one in methods.items()}
        for path, methods in document["paths"].items()
    }
    order = list(TAGS)
    ordered = dict(sorted(paths.items(), key=lambda item: _tag_index(item[1], order)))
    tags = [{"name": name, "description": text} for name, text in TAGS.items()]
    return {
        **document,
        "servers": [{"url": "/"}],
        "tags": tags,
        "paths": ordered,
        "components": _for_generators(document["components"]),
    }


def _for_generators(value: Any) -> Any:
    """Return the document with constants among alternatives as enumerations of one value.

    Client generators take a constant there for the only possible value.
    """
    if isinstance(value, list):
        return [_for_generators(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: _for_generators(one) for name, one in value.items()}
    if isinstance(made.get("anyOf"), list):
        made["anyOf"] = [
            {**{name: part for name, part in one.items() if name != "const"}, "enum": [one["const"]]}
            if "const" in one
            else one
            for one in made["anyOf"]
        ]
    return made


def _tag_index(methods: Mapping[str, Any], order: list[str]) -> int:
    return min(order.index(one["tags"][0]) for one in methods.values())


def _operation(path: str, found: dict[str, Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    example = known.get(found["operationId"], {})
    operation = {**found, "responses": _responses(path, found, example.get("response"))}
    if _ROLE in found:
        operation["description"] = f"{found.get('description', '')}\n\n{_role_sentence(found)}".strip()
    content = found.get("requestBody", {}).get("content", {})
    if "request" in example and "application/json" in content:
        body = {**content["application/json"], "example": example["request"]}
        operation["requestBody"] = {**found["requestBody"], "content": {**content, "application/json": body}}
    return operation


def _role_sentence(operation: Mapping[str, Any]) -> str:
    role = operation[_ROLE]
    if role == "any":
        return "Needs a token, of any role."
    where = "everywhere" if operation.get(_REACH) == "everywhere" else "in the project"
    return f"Needs the role `{role}` {where}."


def _responses(path: str, found: Mapping[str, Any], example: Any) -> dict[str, Any]:
    """Return the answers of an operation: its own, and the errors that every operation of its kind can give."""
    usual = {"401", "403", "429", "503"} if found.get("security") else {"429"}
    if "{" in path:
        usual.add("404")
    if not path.startswith("/api/"):
        usual = set()
    answers: dict[str, Any] = {}
    for status, answer in found["responses"].items():
        if status.startswith("2"):
            answers[status] = _with_example(answer, example)
        else:
            usual.add(status)
    for status in sorted(usual):
        text = _PROBLEMS.get(status) or found["responses"][status].get("description", "")
        answers[status] = {"description": text, "content": {_PROBLEM_TYPE: {"schema": _PROBLEM_SCHEMA}}}
    return answers


def _with_example(answer: dict[str, Any], example: Any) -> dict[str, Any]:
    content = answer.get("content", {})
    if example is None or "application/json" not in content:
        return answer
    return {
        **answer,
        "content": {**content, "application/json": {**content["application/json"], "example": example}},
    }
