"""Breaking changes between two versions of an OpenAPI document.

A client may rely on every operation, on every field of an answer with its type, and on every valid request remaining valid.
New operations, new fields of answers and new optional fields of requests break no client. New values of an enumeration in an
answer do not either, because clients must expect them (`docs/operations/upgrades.md`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Document: TypeAlias = Mapping[str, Any]
_METHODS = ("get", "put", "post", "delete", "head", "patch")


def breaking(old: Document, new: Document) -> list[str]:
    """Return a message for each change that breaks a client of `old`."""
    return sorted(set(_Comparison(old, new).operations()))


class _Comparison:
    """Comparison of two documents. `_open` has the pairs of schemas under comparison, because schemas may be recursive."""

    def __init__(self, old: Document, new: Document) -> None:
        self._old = old
        self._new = new
        self._open: set[tuple[str, str, str]] = set()

    def operations(self) -> Iterator[str]:
        for path, methods in self._old["paths"].items():
            for method in _METHODS:
                if method not in methods:
                    continue
                where = f"{method.upper()} {path}"
                now = self._new["paths"].get(path, {}).get(method)
                if now is None:
                    yield f"{where} is gone"
                else:
                    yield from self._operation(where, methods[method], now)

    def _operation(self, where: str, old: Document, new: Document) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield f"{where}: its operation id is {new.get('operationId')}, it was {old.get('operationId')}"
        yield from self._parameters(where, old, new)
        yield from self._request(where, old.get("requestBody"), new.get("requestBody"))
        for status, answer in old.get("responses", {}).items():
            if not status.startswith("2"):
                continue
            now = new.get("responses", {}).get(status)
            if now is None:
                yield f"{where}: it does not answer {status} any more"
                continue
            for kind, content in answer.get("content", {}).items():
                other = now.get("content", {}).get(kind)
                if other is None:
                    yield f"{where}: its answer is not {kind} any more"
                else:
                    yield from self._answer(
                        where, "answer", content.get("schema", {}), other.get("schema", {})
                    )

    def _parameters(self, where: str, old: Document, new: Document) -> Iterator[str]:
        before = {(one["in"], one["name"]): one for one in old.get("parameters", ())}
        after = {(one["in"], one["name"]): one for one in new.get("parameters", ())}
        for key, one in before.items():
            if key not in after:
                yield f"{where}: its {key[0]} parameter {key[1]} is gone"
            else:
                name = f"parameter {key[1]}"
                yield from self._given(where, name, one.get("schema", {}), after[key].get("schema", {}))
        for key, one in after.items():
            if one.get("required") and not before.get(key, {}).get("required"):
                yield f"{where}: its {key[0]} parameter {key[1]} is required now"

    def _request(self, where: str, old: Document | None, new: Document | None) -> Iterator[str]:
        if new is not None and new.get("required") and not (old or {}).get("required"):
            yield f"{where}: it needs a body now"
        for kind, content in (old or {}).get("content", {}).items():
            other = (new or {}).get("content", {}).get(kind)
            if other is None:
                yield f"{where}: it does not take {kind} any more"
            else:
                yield from self._given(where, "body", content.get("schema", {}), other.get("schema", {}))

    def _answer(self, where: str, name: str, old: Document, new: Document) -> Iterator[str]:
        """Yield the changes of an answer: removed fields, and fields with another type."""
        key = (f"answer {where}", repr(old), repr(new))
        if key in self._open:
            return
        self._open.add(key)
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        if more := _types(new) - _types(old):
            yield f"{where}: {name} may be {_or(more)} now"
        for field, schema in old.get("properties", {}).items():
            other = new.get("properties", {}).get(field)
            if other is None:
                yield f"{where}: {name}.{field} is gone"
                continue
            if field in old.get("required", ()) and field not in new.get("required", ()):
                yield f"{where}: {name}.{field} may be missing now"
            yield from self._answer(where, f"{name}.{field}", schema, other)
        for inner in ("items", "additionalProperties"):
            if isinstance(old.get(inner), Mapping) and isinstance(new.get(inner), Mapping):
                yield from self._answer(where, f"{name}[]", old[inner], new[inner])

    def _given(self, where: str, name: str, old: Document, new: Document) -> Iterator[str]:
        """Yield the changes that make a valid request invalid."""
        key = (f"given {where}", repr(old), repr(new))
        if key in self._open:
            return
        self._open.add(key)
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        if fewer := _types(old) - _types(new):
            yield f"{where}: {name} may not be {_or(fewer)} any more"
        if gone := set(old.get("enum", ())) - set(new.get("enum", old.get("enum", ()))):
            yield f"{where}: {name} may not be {_or(map(str, gone))} any more"
        yield from _limits(where, name, old, new)
        for field, schema in old.get("properties", {}).items():
            other = new.get("properties", {}).get(field)
            if other is not None:
                yield from self._given(where, f"{name}.{field}", schema, other)
            elif new.get("additionalProperties") is False:
                yield f"{where}: {name}.{field} is refused now"
        for field in set(new.get("required", ())) - set(old.get("required", ())):
            yield f"{where}: {name}.{field} is required now"
        if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
            yield from self._given(where, f"{name}[]", old["items"], new["items"])


_LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems")
_HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems")


def _limits(where: str, name: str, old: Document, new: Document) -> Iterator[str]:
    for limit in (*_LOWER, *_HIGHER):
        is_narrower = operator.lt if limit in _LOWER else operator.gt
        if limit in new and (limit not in old or is_narrower(new[limit], old[limit])):
            yield f"{where}: {name} has a narrower {limit} now ({new[limit]})"
    if new.get("pattern", old.get("pattern")) != old.get("pattern"):
        yield f"{where}: {name} has another pattern now ({new['pattern']})"


def _resolved(document: Document, schema: Document) -> Document:
    """Return the schema behind a reference. For a choice with null, return the other schema with both types."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    choices = [_resolved(document, one) for one in schema.get("anyOf", ())]
    if not choices:
        return schema
    types = {kind for one in choices for kind in _types(one)}
    real = [one for one in choices if one.get("type") != "null"]
    return {**(real[0] if len(real) == 1 else {}), "type": sorted(types)}


def _types(schema: Document) -> set[str]:
    kind = schema.get("type", ())
    return {kind} if isinstance(kind, str) else set(kind)


def _or(words: Any) -> str:
    return " or ".join(sorted(words))
