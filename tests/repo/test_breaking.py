"""Which changes of the API's description break its clients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tools.breaking import breaking

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/jobs": {
            "post": {
                "operationId": "submit",
                "parameters": [{"in": "query", "name": "dry", "schema": {"type": "boolean"}}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}},
                },
                "responses": {
                    "201": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
                    },
                    "422": {},
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Spec": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "maxLength": 60},
                    "size": {"type": "integer", "minimum": 1, "maximum": 64},
                    "mode": {"type": "string", "enum": ["a", "b"]},
                },
            },
            "Job": {
                "type": "object",
                "required": ["id", "parent"],
                "properties": {
                    "id": {"type": "string"},
                    "at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "parent": {"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "null"}]},
                },
            },
        }
    },
}
SPEC = ("components", "schemas", "Spec")
JOB = ("components", "schemas", "Job")
POST = ("paths", "/jobs", "post")


def change(path: tuple[str, ...], do: Callable[[Any], object]) -> dict[str, Any]:
    changed = copy.deepcopy(DOCUMENT)
    part: Any = changed
    for name in path:
        part = part[name]
    do(part)
    return changed


@pytest.mark.parametrize(
    "new",
    [
        DOCUMENT,
        change(SPEC, lambda spec: spec["properties"].update(more={"type": "string"})),
        change(SPEC, lambda spec: spec["properties"]["size"].update(maximum=128)),
        change(SPEC, lambda spec: spec["properties"]["mode"]["enum"].append("c")),
        change(SPEC, lambda spec: spec["required"].clear()),
        change(JOB, lambda job: job["properties"].update(more={"type": "string"})),
        change(JOB, lambda job: job["properties"].update(at={"type": "string"})),
        change(("paths",), lambda paths: paths.update({"/nodes": {"get": {"operationId": "nodes"}}})),
        change((*POST, "parameters"), lambda all_: all_.append({"in": "query", "name": "b", "schema": {}})),
    ],
)
def test_what_is_added_breaks_nobody(new: dict[str, Any]) -> None:
    assert breaking(DOCUMENT, new) == []


@pytest.mark.parametrize(
    ("new", "word"),
    [
        (change(("paths",), lambda paths: paths.clear()), "is gone"),
        (change(POST, lambda post: post.update(operationId="send")), "operation id"),
        (change((*POST, "parameters"), lambda all_: all_.clear()), "dry is gone"),
        (change((*POST, "parameters"), lambda all_: all_[0].update(required=True)), "dry is required"),
        (change((*POST, "responses"), lambda all_: all_.pop("201")), "does not answer 201"),
        (change(SPEC, lambda spec: spec["required"].append("size")), "body.size is required"),
        (change(SPEC, lambda spec: spec["properties"].pop("mode")), "body.mode is refused"),
        (change(SPEC, lambda spec: spec["properties"]["mode"]["enum"].remove("b")), "may not be b"),
        (change(SPEC, lambda spec: spec["properties"]["size"].update(maximum=32)), "narrower maximum"),
        (change(SPEC, lambda spec: spec["properties"]["size"].update(minimum=2)), "narrower minimum"),
        (change(SPEC, lambda spec: spec["properties"]["size"].update(type="string")), "may not be integer"),
        (change(SPEC, lambda spec: spec["properties"]["name"].update(pattern="x")), "another pattern"),
        (change(JOB, lambda job: job["properties"].pop("at")), "answer.at is gone"),
        (
            change(JOB, lambda job: job["properties"].update(at={"type": "integer"})),
            "answer.at may be integer",
        ),
        (change(JOB, lambda job: job["required"].remove("id")), "answer.id may be missing"),
        (
            change(JOB, lambda job: job["properties"]["id"].update(type=["string", "null"])),
            "answer.id may be null",
        ),
    ],
)
def test_what_breaks_a_client_is_said(new: dict[str, Any], word: str) -> None:
    found = breaking(DOCUMENT, new)
    assert any(word in line for line in found), found
    assert all(line.startswith("POST /jobs") for line in found)


def test_a_schema_that_contains_itself_comes_to_an_end() -> None:
    found = breaking(DOCUMENT, change(JOB, lambda job: job["properties"].pop("id")))
    assert [line for line in found if "parent.parent" in line] == []
    assert "POST /jobs: answer.id is gone" in found
