"""The JSON schema of the job file with descriptions, and the list of its fields with types, defaults and bounds.

The tables of docs/job-file.md are the only source of the meanings. A field without a row there is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.contract.spec_after import JOB_PATTERN
from headway.contract.spec_sweep import SweepSpec
from tools.settings import Undocumented

_PAGE = Path(__file__).parent.parent / "docs" / "job-file.md"
_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
_HEADING = re.compile(r"^## (?:`(?P<part>\w+)`|(?P<top>Top level)|.*)")
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| .* \| (?P<means>[^|]+) \|$")
_SIZE = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KMGT]iB|[KMGT]?B)?$"}
_DURATION = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)?$"}
_AS_TEXT = {
    "resources.memory_per_slot": ("size", _SIZE),
    "checkpoint.every": ("duration", _DURATION),
    "checkpoint.grace_s": ("duration", _DURATION),
    "output.every": ("duration", _DURATION),
    "output.max_size": ("size", _SIZE),
    "hung_after": ("duration", _DURATION),
    "exit_within": ("duration", _DURATION),
}
"""Numbers that may have a unit (`contract.quantities`), which pydantic's schema does not show."""
_NAMES = {"after": {"type": "string", "pattern": JOB_PATTERN}}
"""Lists whose entries may be a name alone, which the API's schema does not have: its answers have the whole entry."""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def schema() -> dict[str, Any]:
    """Return the JSON schema, which editors use for job files.

    Raises:
        Undocumented: a field has no row in docs/job-file.md, or a row has no field.
    """
    found: dict[str, Any] = {"$schema": _SCHEMA_ID, **SweepSpec.model_json_schema(by_alias=True)}
    found["required"].remove("sweep")
    found["title"] = "JobSpec"
    meanings = _meanings()
    for path, one in _fields(found):
        if path not in meanings:
            raise Undocumented(f"docs/job-file.md has no row for the field `{path}`: write one.")
        if path in _AS_TEXT:
            options = [_plain(option) for option in one.pop("anyOf", None) or [_moved(one)]]
            one["anyOf"] = [*options, _AS_TEXT[path][1]]
        if path in _NAMES:
            one["items"] = {"anyOf": [_NAMES[path], one["items"]]}
        one["description"] = meanings[path]
    if stale := sorted(meanings.keys() - {path for path, _ in _fields(found)}):
        raise Undocumented(f"docs/job-file.md has a row for {', '.join(stale)}, which no job file may have.")
    return found


def page() -> str:
    """Return the page with the list of fields."""
    found = schema()
    rows = [
        f"- `{path}`{_default(one)}: {_type(path, one, found)}{_bounds(one)}" for path, one in _fields(found)
    ]
    return "\n".join([_LEAD, *rows, ""])


_LEAD = """# Fields of the job file

Generated from [the JSON schema](job.schema.json) with which the service checks job files; [the job file](../job-file.md) has the meanings. Defaults are in brackets. With this
first line and the right path to the schema, editors with a YAML language server complete and explain fields:

```yaml
# yaml-language-server: $schema=job.schema.json
name: digits
run: python digits.py
```
"""


def dump() -> str:
    """Return the text of the schema file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _moved(one: dict[str, Any]) -> dict[str, Any]:
    """Remove the type and bounds of a field from it, and return them."""
    return {key: one.pop(key) for key in ("type", "ge", "le", "gt") if key in one}


def _plain(option: dict[str, Any]) -> dict[str, Any]:
    """Return the option with JSON schema's names of bounds, which pydantic leaves out for fields with a validator."""
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum"}
    return {names.get(key, key): value for key, value in option.items()}


def _meanings() -> dict[str, str]:
    """Return the meanings in docs/job-file.md by the path of the field."""
    found, part = {}, None
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            part = "" if heading["top"] else f"{heading['part']}." if heading["part"] else None
        elif part is not None and (row := _ROW.match(line)):
            found[part + row["name"]] = _LINK.sub(r"\1", row["means"]).replace("`", "").strip()
    return found


def _fields(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field with its path. A section of the file is not a field, but its members are."""
    for name, one in found["properties"].items():
        part = _definition(one, found).get("properties")
        if part is None:
            yield name, one
        else:
            yield from ((f"{name}.{inner}", each) for inner, each in part.items())


def _definition(one: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the definition behind a reference, or the schema itself."""
    defined: dict[str, Any] = found["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
    return defined


def _options(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [option for option in one.get("anyOf", [one]) if option.get("type") != "null"]


def _type(path: str, one: dict[str, Any], found: dict[str, Any]) -> str:
    if path not in _AS_TEXT:
        return " or ".join(dict.fromkeys(_option(_definition(option, found)) for option in _options(one)))
    words = [_option(option) for option in _options(one) if "const" in option or "enum" in option]
    return " or ".join([*words, _AS_TEXT[path][0]])


def _option(option: dict[str, Any]) -> str:
    if "enum" in option or "const" in option:
        return ", ".join(f"`{value}`" for value in option.get("enum", [option.get("const")]))
    kinds = {
        "array": "list",
        "object": "map",
        "string": "text",
        "integer": "whole number",
        "date-time": "time with zone",
    }
    kind = str(option.get("format") or option.get("type") or "value")
    return kinds.get(kind, kind)


def _default(one: dict[str, Any]) -> str:
    value = one.get("default")
    return "" if value is None else f" (`{value if isinstance(value, str) else json.dumps(value)}`)"


def _bounds(one: dict[str, Any]) -> str:
    bounds = []
    for option in _options(one):
        if "exclusiveMinimum" in option:
            bounds.append(f"above {option['exclusiveMinimum']:g}")
        elif "minimum" in option:
            bounds.append(f"at least {option['minimum']:,.10g}")
        if "maximum" in option:
            bounds.append(f"at most {option['maximum']:,.10g}")
        if "maxLength" in option:
            bounds.append(f"at most {option['maxLength']:,} characters")
    return f"; {', '.join(bounds)}" if bounds else ""
