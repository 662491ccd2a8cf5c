"""Job files: YAML to a job spec, with errors that name the line, the field and the nearest valid name."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headway.contract.spec import NAME_PATTERN, JobSpec
from headway.errors import HeadwayError

Location = tuple[str | int, ...]
MOST_CHARACTERS = 65_536
_DEEPEST = 20
_MOST_ALIASES = 20
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


class JobFileError(HeadwayError):
    """Error: the file is not a valid job file."""


def load(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Return the job of a file after `key=value` overrides such as `elastic.max=4`. The path `-` reads stdin.

    Raises:
        JobFileError: the file is missing, is not YAML, or is not a job; the error lists every wrong field.
    """
    name = "stdin" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise JobFileError(f"{name}: {error.strerror}.", "Give the path of a job file.") from None
    except UnicodeDecodeError:
        raise JobFileError(f"{name} is not text.", "Give the path of a job file.") from None
    return parse(text, name, overrides)


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> JobSpec:
    """Parse a job from text, as `load` does. `name` is the file's name in errors."""
    lines: dict[Location, int] = {}
    document = _document(text, name, lines)
    for override in overrides:
        _override(document, override)
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        raise JobFileError("\n".join(_problems(error, name, document, lines))) from None


def from_fields(fields: Mapping[str, Any]) -> JobSpec:
    """Return the job with these fields, as in a job file.

    Raises:
        JobFileError: the fields are not a valid job; the error lists every wrong field.
    """
    try:
        return JobSpec.model_validate(dict(fields))
    except ValidationError as error:
        raise JobFileError("\n".join(_problems(error, "job", fields, {}))) from None


def _document(text: str, name: str, lines: dict[Location, int]) -> dict[str, Any]:
    try:
        _refuse_excess(text, name)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _index(root, (), lines, name)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise JobFileError(f"{where}: {error.problem or error.context}.", "Correct the YAML.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise JobFileError(f"{name}: {error}.", "Correct the YAML.") from None
    if not isinstance(document, dict):
        raise JobFileError(f"{name} is not a job file.", "A job has at least `name` and `run`, one per line.")
    return document


def _refuse_excess(text: str, name: str) -> None:
    """Refuse a text that would take long to parse, or become huge by aliases."""
    if len(text) > MOST_CHARACTERS:
        raise JobFileError(f"{name} has more than {MOST_CHARACTERS:,} characters.", "Make it shorter.")
    depth = aliases = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        aliases += isinstance(token, yaml.AliasToken)
        where = f"{name}:{token.start_mark.line + 1}"
        if depth > _DEEPEST:
            raise JobFileError(f"{where}: nested more than {_DEEPEST} deep.", "Nest it less.")
        if aliases > _MOST_ALIASES:
            raise JobFileError(f"{where}: more than {_MOST_ALIASES} aliases (*name).", "Write them out.")


def _index(node: yaml.Node, at: Location, lines: dict[Location, int], name: str) -> None:
    """Store the line of every field. Refuse a duplicate field, which YAML would accept."""
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _index(item, (*at, index), lines, name)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                raise JobFileError(
                    f"{name}:{line}: {_dotted_path(here)} is given twice, first in line {lines[here]}.",
                    "Keep one.",
                )
            lines[here] = line
            _index(value, here, lines, name)


def _override(document: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise JobFileError(
            f"--set {override}: not of the form key=value.", "Write it like --set elastic.max=4."
        )
    *parents, last = key.split(".")
    place = document
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise JobFileError(
                f"--set {override}: {parent} has no fields.", "Write it like --set elastic.max=4."
            )
        place = inner
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        place[last] = value
    if parents and parents[0] == "env":
        place[last] = value  # the environment holds text: no conversion of --set env.THREADS=1


def _problems(
    error: ValidationError, name: str, document: Mapping[str, Any], lines: Mapping[Location, int]
) -> Iterator[str]:
    """Yield one line per wrong field, in the order of the file."""
    messages: dict[Location, list[str]] = {}
    for problem in error.errors():
        field = _file_location(problem["loc"], document)
        messages.setdefault(field, []).append(_message(problem, field))

    def line_of(field: Location) -> int:
        return next((lines[field[:n]] for n in range(len(field), 0, -1) if field[:n] in lines), 0)

    for field in sorted(messages, key=line_of):
        if any(other[: len(field)] == field != other for other in messages):
            continue  # an alternative of a union: the complaint about its contents says more
        where = f"{name}:{line_of(field)}" if line_of(field) else name
        yield f"{where}: {_dotted_path(field)}: {', or '.join(messages[field])}"


_MESSAGES = {
    "missing": "this field is needed",
    "string_type": 'must be text; write it in quotes: "…"',
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be greater than {gt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "tuple_type": "must be a list",
    "model_type": "must be a group of fields",
    "dict_type": "must be a group of fields",
}
"""Messages for Pydantic's error types, with placeholders for their context."""


def _message(problem: ErrorDetails, field: Location) -> str:
    context = problem.get("ctx", {})
    if problem["type"] == "extra_forbidden":
        return "there is no such field" + _suggestion(field)
    if context.get("pattern") == NAME_PATTERN:
        return "use a-z, 0-9 and -, at most 63 characters, beginning and ending with a letter or digit"
    template = _MESSAGES.get(problem["type"])
    return template.format(**context) if template else problem["msg"].removeprefix("Value error, ")


def _file_location(location: Location, document: Any) -> Location:
    """Return a Pydantic location without the names of union members that it contains."""
    real: list[str | int] = []
    value = document
    for index, part in enumerate(location):
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, Mapping) and part in value):
            value = value[part]
        elif not (isinstance(value, Mapping) and index == len(location) - 1):
            continue  # a scalar or a marker of a key: not a field of the file
        real.append(part)
    return tuple(real)


def _suggestion(field: Location) -> str:
    """Return a hint: the same name elsewhere in the spec, or a similar name in the same group."""
    known = dict(_fields(JobSpec))
    elsewhere = [path for path in known if path[-1] == field[-1]]
    if elsewhere:
        return f"; did you mean `{_dotted_path(elsewhere[0])}`?"
    siblings = {path[-1]: path for path in known if path[:-1] == field[:-1]}
    near = difflib.get_close_matches(str(field[-1]), siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; there are {', '.join(sorted(siblings))}" if siblings else ""


def _fields(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, info in model.model_fields.items():
        path = (*at, info.alias or name)
        yield path, info
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _fields(info.annotation, path)


def _dotted_path(field: Location) -> str:
    return ".".join(str(part) for part in field) or "the job"
