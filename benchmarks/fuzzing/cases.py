"""Inputs as values, and their making from a seed: requests by the API's description, and texts for the parsers."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from benchmarks.fuzzing.archives import generated


class Surface(StrEnum):
    """Place where inputs from outside enter."""

    HTTP = "http"
    REPORTS = "reports"
    """Reports of an agent with a valid token."""
    JOB_FILES = "job_files"
    RANK_MESSAGES = "rank_messages"
    MANIFESTS = "manifests"
    ARCHIVES = "archives"


@dataclass(frozen=True, slots=True)
class Case:
    """One input. For requests, `role` names the sender, and `data` is the body; else `data` is the whole input."""

    surface: Surface
    data: bytes
    method: str = ""
    path: str = ""
    role: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the case as a JSON object, for a file of saved cases."""
        return {
            "surface": self.surface,
            "data": base64.b64encode(self.data).decode(),
            "method": self.method,
            "path": self.path,
            "role": self.role,
            "headers": dict(self.headers),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Case:
        """Return the case of a JSON object that `to_json` returned."""
        return cls(
            surface=Surface(saved["surface"]),
            data=base64.b64decode(saved["data"]),
            method=saved["method"],
            path=saved["path"],
            role=saved["role"],
            headers=saved["headers"],
        )


ROLES = ("viewer", "user", "operator", "admin")
NODE, NOBODY = "node", "nobody"
JOB_ID, NODE_ID = "{{job}}", "{{node}}"
"""Marks in paths and bodies in place of the ids of the job and the node of a run."""
_WEIGHTS: Mapping[Surface, float] = {
    Surface.HTTP: 60,
    Surface.REPORTS: 10,
    Surface.JOB_FILES: 12,
    Surface.RANK_MESSAGES: 8,
    Surface.MANIFESTS: 8,
    Surface.ARCHIVES: 2,
}
_ODD: Sequence[Any] = (
    None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, float("nan"), float("inf"),
    "", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "a" * 5000, "é" * 300, "\u202e", "\x1b[2J", "../../etc/passwd",
    "'; DROP TABLE jobs; --", "%00", "%", "{}", "0x10", "1e9", "-1", "9" * 30, "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999+14:00", [], [[]], [None] * 300, {}, {"": {}}, {"a": {"b": {"c": [1]}}},
)  # fmt: skip
_WORDS = ("name", "job", "red", "alpha", "cpu", "python -V", "1", "10", "2026-01-01T00:00:00Z", "10m", "1GiB")
_HEADERS = ("content-type", "if-match", "if-none-match", "idempotency-key", "last-event-id", "accept", "cookie", "range",
            "traceparent", "x-request-id", "accept-language", "origin", "headway-request-id", "expect")  # fmt: skip
_DEEPEST = 6


class Maker:
    """Maker of cases. The same seed and description give the same cases.

    Args:
        seed: source of all randomness.
        description: the OpenAPI document of the service.
        job_files, rank_messages, manifests: valid inputs, of which variants are made.
        report: a valid report of an agent, with `NODE_ID` and `JOB_ID`.
    """

    def __init__(
        self,
        seed: int,
        description: Mapping[str, Any],
        *,
        job_files: Sequence[str],
        rank_messages: Sequence[Mapping[str, Any]],
        manifests: Sequence[Mapping[str, Any]],
        report: Mapping[str, Any],
    ) -> None:
        self._dice = random.Random(seed)
        self._schemas = description["components"]["schemas"]
        self._operations = [
            (method.upper(), path, one)
            for path, methods in description["paths"].items()
            for method, one in methods.items()
        ]
        self._job_files = job_files
        self._rank_messages = rank_messages
        self._manifests = manifests
        self._report = report

    def next(self) -> Case:
        """Return another case."""
        (surface,) = self._dice.choices([*_WEIGHTS], [*_WEIGHTS.values()])
        match surface:
            case Surface.HTTP:
                return self._request()
            case Surface.REPORTS:
                path = f"/api/v1/agents/{NODE_ID}/reports"
                body = self._bytes(self._changed(self._report))
                return Case(surface, body, "POST", path, NODE, {"content-type": "application/json"})
            case Surface.JOB_FILES:
                return Case(surface, self._job_file())
            case Surface.RANK_MESSAGES:
                return Case(surface, self._bytes(self._changed(self._dice.choice(self._rank_messages))))
            case Surface.MANIFESTS:
                return Case(surface, self._bytes(self._changed(self._dice.choice(self._manifests))))
            case Surface.ARCHIVES:
                return Case(surface, generated(self._dice.randrange(2**32)))

    # Requests

    def _request(self) -> Case:
        method, path, operation = self._dice.choice(self._operations)
        query: list[str] = []
        headers: dict[str, str] = {}
        for parameter in operation.get("parameters", ()):
            if not parameter.get("required") and self._dice.random() < 0.5:
                continue
            text = self._text(parameter)
            match parameter["in"]:
                case "path":
                    path = path.replace(
                        "{" + parameter["name"] + "}", quote(text, safe="", errors="surrogatepass")
                    )
                case "query":
                    query.append(f"{parameter['name']}={quote(text, errors='surrogatepass')}")
                case "header":
                    headers[parameter["name"]] = text
        body, kind = self._body(operation)
        if kind:
            headers["content-type"] = kind
        if self._dice.random() < 0.1:
            headers[self._dice.choice(_HEADERS)] = str(self._dice.choice([*_ODD, *_WORDS]))
        if self._dice.random() < 0.05:
            query.append(
                f"{self._dice.choice(_WORDS)}={quote(str(self._dice.choice(_ODD)), errors='surrogatepass')}"
            )
        if self._dice.random() < 0.02:
            method = self._dice.choice(
                ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "QUERY"]
            )
        role = self._dice.choice([*ROLES, *ROLES, NODE, NOBODY])
        return Case(
            Surface.HTTP, body, method, "?".join([path, "&".join(query)]) if query else path, role, headers
        )

    def _text(self, parameter: Mapping[str, Any]) -> str:
        if self._dice.random() < 0.3:
            return str(self._dice.choice(_ODD))
        known = {"job": "fuzzed", "job_id": JOB_ID, "node": "fuzzed", "node_id": NODE_ID, "project": "default",
                 "generation": "1", "rank": "0", "slot": "0"}  # fmt: skip
        name = parameter["name"]
        if name in known and self._dice.random() < 0.7:
            return known[name]
        return str(self._value(parameter.get("schema", {}), 0))

    def _body(self, operation: Mapping[str, Any]) -> tuple[bytes, str]:
        content = operation.get("requestBody", {}).get("content", {})
        if not content:
            return (self._dice.randbytes(9), "") if self._dice.random() < 0.05 else (b"", "")
        kind = self._dice.choice([*content])
        if "yaml" in kind:
            return self._job_file(), kind
        if "json" not in kind:
            return self._dice.randbytes(self._dice.randrange(200)), kind
        schema = content[kind].get("schema", {})
        examples = [one for one in (content[kind].get("example"), schema.get("example")) if one is not None]
        if examples and self._dice.random() < 0.5:
            return self._bytes(self._changed(examples[0])), kind
        return self._bytes(self._value(schema, 0)), kind

    # Values

    def _value(self, schema: Mapping[str, Any], depth: int) -> Any:
        """Return a value of a JSON schema; one in twelve is not what the schema wants."""
        dice = self._dice
        if dice.random() < 1 / 12 or depth > _DEEPEST:
            return dice.choice(_ODD)
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self._value(dice.choice(schema[several]), depth + 1)
        if "const" in schema or "enum" in schema:
            return dice.choice(schema.get("enum") or [schema["const"]])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items") or {}
                return [self._value(items, depth + 1) for _ in range(dice.choice([0, 1, 1, 2, 5]))]
            case "integer" | "number" | "boolean" | "null" as kind:
                return self._plain(schema, kind)
        return dice.choice([*_WORDS, JOB_ID, NODE_ID])

    def _plain(self, schema: Mapping[str, Any], kind: str) -> Any:
        if kind in {"boolean", "null"}:
            return None if kind == "null" else self._dice.random() < 0.5
        low, high = schema.get("minimum", -1), schema.get("maximum", 1000)
        choices = [low, high, self._dice.randint(int(low), max(int(low), int(high)))]
        return self._dice.choice(choices if kind == "integer" else [*choices, self._dice.random()])

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        required = schema.get("required", ())
        for name, inner in schema.get("properties", {}).items():
            if name in required or self._dice.random() < 0.35:
                made[name] = self._value(inner, depth + 1)
        if isinstance(schema.get("additionalProperties"), dict):
            for _ in range(self._dice.choice([0, 1, 3])):
                key = str(self._dice.choice([*_WORDS, "\x00", "é", "a" * 300, ""]))
                made[key] = self._value(schema["additionalProperties"], depth + 1)
        return made

    def _changed(self, valid: Any) -> Any:
        """Return a copy of a valid value in which up to three parts are others."""
        made = copy.deepcopy(valid)
        for _ in range(self._dice.choice([0, 1, 1, 2, 3])):
            places = list(_places(made))
            if not places:
                break
            holder, key = self._dice.choice(places)
            if self._dice.random() < 0.15:
                del holder[key]
            else:
                holder[key] = copy.deepcopy(self._dice.choice([*_ODD, holder[key], [holder[key]]]))
        return made

    def _bytes(self, value: Any) -> bytes:
        data = json.dumps(value).encode()
        return self._broken(data) if self._dice.random() < 0.1 else data

    def _broken(self, data: bytes) -> bytes:
        """Return the data with a few bytes changed, cut or repeated."""
        raw = bytearray(data)
        for _ in range(self._dice.randint(1, 4)):
            at = self._dice.randrange(len(raw) + 1)
            match self._dice.randrange(3):
                case 0:
                    raw[at : at + 1] = self._dice.randbytes(1)
                case 1:
                    del raw[at : at + self._dice.randint(1, 20)]
                case _:
                    raw[at:at] = raw[at : at + 20] * self._dice.choice([1, 2, 200])
        return bytes(raw)

    def _job_file(self) -> bytes:
        text = self._dice.choice(self._job_files)
        lines = text.splitlines()
        for _ in range(self._dice.choice([0, 1, 2, 3])):
            at = self._dice.randrange(len(lines))
            word = self._dice.choice(["&a [*a]", "*a", "!!python/object:os.system x", "? ", "- - - -", "{", "[" * 500, "|", ">-", "'", '"',
                                      "\t", "%YAML 9", "---", "...", "<<: *a", "!!binary x", "1e400", "0o9", ".inf", "1:2:3",
                                      "2026-99-99", "\ufeff", "\x85", "é: é", "x" * 3000, "~", "null", "yes", str(self._dice.choice(_ODD))])  # fmt: skip
            match self._dice.randrange(3):
                case 0:
                    lines[at] = f"{lines[at].partition(':')[0]}: {word}"
                case 1:
                    lines.insert(at, f"{' ' * self._dice.randrange(5)}{word}")
                case _:
                    lines[at] += f" {word}"
        data = "\n".join(lines).encode(errors="surrogatepass")
        return self._broken(data) if self._dice.random() < 0.2 else data


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    """Return every place in a value of JSON, as its holder and key."""
    found: list[tuple[Any, Any]] = []
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *_places(value[key])]
    return found
