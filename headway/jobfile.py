"""Job files: YAML to a job spec, with errors that name the line, the field and the nearest valid name."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headway.contract.spec import DIGEST_PATTERN, IMAGE_PATTERN, NAME_PATTERN, START_PATTERN, JobSpec
from headway.contract.spec_env import ENV_NAME_PATTERN, SECRET_NAME_PATTERN, env_problem
from headway.contract.spec_parameters import PARAMETER_PATTERN
from headway.contract.spec_parts import leaf_types
from headway.contract.spec_submit import submit_problem
from headway.contract.spec_sweep import SweepSpec
from headway.contract.spec_warnings import shortened
from headway.contract.values.devices import DEVICE_KIND_PATTERN
from headway.jobfile_examples import EXAMPLES
from headway.yaml_source import (
    JobFileError,
    Location,
    YamlSource,
    dotted_path,
    joined_lines,
    line_of,
    read_yaml,
    scalar,
)

__all__ = ["MOST_CHARACTERS", "JobFile", "JobFileError", "from_fields", "load", "parse", "read"]

MOST_CHARACTERS = 65_536
"""Length of a text that a service parses for somebody."""
_MOST_OF_FILE = 1_048_576
"""Length of a file, with room for the largest environment."""
_INTERPRETERS = {".py": "python", ".sh": "bash"}
_PATHS = frozenset({("workdir",), ("output", "dir"), ("python", "requirements"), ("python", "lock")})
"""Fields that have the path of a folder or a file."""
_CODE = frozenset({("run",), ("progress", "regex")})
"""Fields in which a # behind a space is usual."""
_MOST_LINES = 20
"""Wrong fields that an error lists. Nobody reads more, and a file of wrong fields would take long to explain."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job as read from a file, with warnings about what YAML made of the text."""

    spec: JobSpec
    warnings: tuple[str, ...] = ()


def load(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Return the job of a file, as `read` does and without its warnings."""
    return read(path, overrides).spec


def read(path: Path, overrides: Sequence[str] = (), *, sweeps: bool = False) -> JobFile:
    """Return the job of a file after `key=value` overrides such as `elastic.max=4`. The path `-` reads stdin.

    With `sweeps`, the spec of a file that has the part `sweep` is a `SweepSpec`. Without, such a file is wrong.

    Raises:
        JobFileError: the file is missing, is not YAML, or is not a job; the error lists every wrong field.
    """
    name = "stdin" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read().removeprefix("\ufeff") if str(path) == "-" else path.read_text("utf-8-sig")
    except OSError as error:
        raise JobFileError(f"{name}: {error.strerror}.", "Give the path of a job file.") from None
    except UnicodeDecodeError:
        raise JobFileError(f"{name} is not text in UTF-8.", "Give the path of a job file.") from None
    interpreter = _INTERPRETERS.get(Path(name).suffix)
    if interpreter:
        raise JobFileError(
            f"{name} is a script, not a job file.",
            f"Submit a job file that runs it, with `name: …` and `run: {interpreter} {Path(name).name}`.",
        )
    return _read(text, name, overrides, _MOST_OF_FILE, sweeps=sweeps)


def parse(text: str, name: str, overrides: Sequence[str] = (), *, sweeps: bool = False) -> JobSpec:
    """Parse a job from text, as `read` does. `name` is the file's name in errors."""
    return _read(text, name, overrides, MOST_CHARACTERS, sweeps=sweeps).spec


def _read(
    text: str, name: str, overrides: Sequence[str], most_characters: int, *, sweeps: bool = False
) -> JobFile:
    document, source, root = read_yaml(text, name, most_characters)
    set_by: dict[Location, str] = {}
    for override in overrides:
        _override(document, override, source, set_by)
    problems = _Problems(source, document, set_by)
    try:
        spec = _model(document, sweeps=sweeps).model_validate(document)
    except ValidationError as error:
        raise JobFileError("\n".join(problems.lines(error.errors()))) from None
    if source.odd_numbers:
        raise JobFileError("\n".join(problems.lines([])))
    if (at := _refused_nothing(source, set_by)) is not None:
        raise JobFileError(
            problems.line(
                at, "`~` is nothing to YAML; write the whole path of the folder, or leave the line out"
            )
        )
    if (found := submit_problem(spec) or env_problem(spec.env, {})) is not None:
        raise JobFileError(problems.line(tuple(found[0].split(".")), found[1]))
    return JobFile(spec, tuple(_warnings(root, source, set_by)))


def _refused_nothing(source: YamlSource, set_by: Mapping[Location, str]) -> Location | None:
    """Return the field of a path that is `~`, which is nothing to YAML and the home folder to a shell; None if there is none."""
    return next(
        (at for at, one in source.nothings.items() if one == "~" and at in _PATHS and at not in set_by), None
    )


def _warnings(root: yaml.Node, source: YamlSource, set_by: Mapping[Location, str]) -> Iterator[str]:
    """Yield warnings about values of which YAML makes something else than a shell would."""
    for at, comment in source.comments.items():
        # A comment that begins with a space is one of the file: `LEVEL: debug  # noisy`.
        probable = at in _CODE or not comment.startswith("# ")
        if probable and _takes_text(at) and not any(at[: len(one)] == one for one in set_by):
            what = "command" if at == ("run",) else "value"
            yield (
                f"{source.name}:{line_of(at, source.lines)}: {dotted_path(at)} ends before `{shortened(comment)}`, which YAML "
                f"takes for a comment; if it belongs to the {what}, put the whole {what} in quotes"
            )
    for name, line in source.unused_anchors.items():
        yield (
            f"{source.name}:{line}: YAML takes `&{shortened(name)}` for a name of the value, and nothing uses it as "
            f"`*{shortened(name)}`; if it belongs to the value, put the whole value in quotes"
        )
    if source.nothings.get(("workdir",)) == "" and ("workdir",) not in set_by:
        yield f"{source.name}:{source.lines['workdir',]}: workdir is empty, so no folder is uploaded; write `workdir: .` for the one of this file"
    line = 0 if ("run",) in set_by else joined_lines(root, source)
    if line:
        yield (
            f"{source.name}:{line}: run has a backslash at the end of the line, and YAML joins it with the next line, so the "
            "next argument begins with a space; write `run: |` and the command in the next lines, indented"
        )


def _model(fields: Mapping[str, Any], *, sweeps: bool) -> type[JobSpec]:
    return SweepSpec if sweeps and "sweep" in fields else JobSpec


def from_fields(fields: Mapping[str, Any], *, sweeps: bool = False) -> JobSpec:
    """Return the job with these fields, as in a job file; with `sweeps`, as `read` does.

    Raises:
        JobFileError: the fields are not a valid job; the error lists every wrong field.
    """
    try:
        return _model(fields, sweeps=sweeps).model_validate(dict(fields))
    except ValidationError as error:
        problems = _Problems(YamlSource("job", ""), fields, {})
        raise JobFileError("\n".join(problems.lines(error.errors()))) from None


def _override(
    document: dict[str, Any], override: str, source: YamlSource, set_by: dict[Location, str]
) -> None:
    """Set a field as `--set` says. A field for text takes the value as it stands, others take it as YAML."""
    key, equals, value = override.partition("=")
    at = tuple(key.split("."))
    if not equals or "" in at:
        raise JobFileError(
            f"--set {override}: not of the form key=value.", "Write it like --set elastic.max=4."
        )
    place = document
    for parent in at[:-1]:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise JobFileError(
                f"--set {override}: {parent} has no fields.", "Write it like --set elastic.max=4."
            )
        place = inner
    set_by[at] = override
    for known in [one for one in source.odd_numbers if one[: len(at)] == at]:
        del source.odd_numbers[known]
    place[at[-1]] = value
    if _is_text(at, value):
        return
    try:
        place[at[-1]], odd = scalar(value)
    except JobFileError:
        return
    if odd:
        source.odd_numbers[at] = odd


def _takes_text(at: Location) -> bool:
    """Return True if any text is a value of the field, as of `run`, of a variable of `env` or of a parameter."""
    fields = dict(_fields(SweepSpec))
    names = tuple(part for part in at if isinstance(part, str))  # without the places in lists
    info = fields.get(names) or fields.get(names[:-1])
    return info is not None and str in leaf_types(info.annotation)


def _is_text(at: tuple[str, ...], value: str) -> bool:
    """Return True if the field takes text only. An optional one also takes `null` or nothing, for no value."""
    fields = dict(_fields(SweepSpec))
    info = fields.get(at) or (fields.get(at[:-1]) if len(at) == 2 and at[0] in {"env", "secrets"} else None)
    if info is None:
        return False
    kinds = set(leaf_types(info.annotation))
    return kinds <= {str, type(None)} and not (type(None) in kinds and value in {"", "null"})


@dataclass(frozen=True, slots=True)
class _Problems:
    """Messages about wrong fields of a document, with their places in the file or on the command line."""

    source: YamlSource
    document: Mapping[str, Any]
    set_by: Mapping[Location, str]

    def lines(self, errors: Sequence[ErrorDetails]) -> Iterator[str]:
        """Yield one line per wrong field, in the order of the file, for at most `_MOST_LINES` of them."""
        found: dict[Location, list[ErrorDetails | str]] = {}
        odd = dict(self.source.odd_numbers)
        for problem in errors:
            field = _file_location(problem["loc"], self.document)
            if problem["type"] in {"string_type", "extra_forbidden"}:
                odd.pop(field, None)  # as a number it would be wrong too
            found.setdefault(field, []).append(problem)
        found |= {field: [message] for field, message in odd.items()}
        groups = {field[:n] for field in found for n in range(len(field))}
        # A group is an alternative of a union: the complaint about its contents says more.
        fields = sorted(
            (one for one in found if one not in groups), key=lambda one: line_of(one, self.source.lines)
        )
        for field in fields[:_MOST_LINES]:
            said = [one if isinstance(one, str) else _message(one, field) for one in found[field]]
            yield self.line(field, ", or ".join(said) + _example(field, found[field]))
        if len(fields) > _MOST_LINES:
            yield f"{self.source.name}: {len(fields) - _MOST_LINES:,} more fields are wrong"

    def line(self, field: Location, message: str) -> str:
        """Return the message about a field, with the place where its value stands."""
        override = next(
            (self.set_by[field[:n]] for n in range(len(field), 0, -1) if field[:n] in self.set_by), ""
        )
        line = line_of(field, self.source.lines)
        if not override and field not in self.source.lines:  # a group that only overrides name
            override = next((one for at, one in self.set_by.items() if at[: len(field)] == field), "")
        if override:
            return f"--set {shortened(override)}: {dotted_path(field)}: {message}"
        where = f"{self.source.name}:{line}" if line else self.source.name
        said = [message, self.source.odd_space_in(line)]
        if (comment := self.source.comments.get(field)) and _takes_text(field):
            said.append(
                f"YAML takes `{shortened(comment)}` for a comment: put the whole value in quotes if it belongs to it"
            )
        return f"{where}: {dotted_path(field)}: {'; '.join(filter(None, said))}"


_MESSAGES = {
    "missing": "this field is needed",
    "string_type": 'must be text; write it in quotes: "…"',
    "string_too_long": "may have at most {max_length:,} characters",
    "too_long": "is too long: at most {max_length:,}, not {actual_length:,}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "string_unicode": "holds half a character; write the whole character",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "string_pattern_mismatch": "does not have the right form",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
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


_STRUCTURES = frozenset({"list_type", "tuple_type", "model_type", "dict_type"})
"""Types of errors about a value that is no list or no group."""


def _example(field: Location, problems: Sequence[ErrorDetails | str]) -> str:
    """Return how to write a field that has no list, no group, or none of several kinds of values; empty for others."""
    structure = any(not isinstance(one, str) and one["type"] in _STRUCTURES for one in problems)
    example = EXAMPLES.get(dotted_path(field))
    if example is None or not (structure or len(problems) > 1):
        return ""
    return f"; write for example `{field[-1]}: {example}`, or leave {field[-1]} out"


_PATTERNS = {
    NAME_PATTERN: "use a-z, 0-9 and -, at most 63 characters, beginning and ending with a letter or digit",
    START_PATTERN: "write JOB, or JOB@CHECKPOINT with a checkpoint as `headway checkpoints` names it",
    DIGEST_PATTERN: "write sha256: and 64 digits of 0-9 and a-f",
    IMAGE_PATTERN: "write it like registry.example.com/team/image:tag",
    ENV_NAME_PATTERN: "a variable's name has letters, digits and _, does not begin with a digit, and stands before `: `",
    SECRET_NAME_PATTERN: "a secret's name has letters, digits, _ and -, and begins with a letter or _",
    PARAMETER_PATTERN: "a parameter's name has letters, digits and _, at most 64, and does not begin with a digit",
    DEVICE_KIND_PATTERN: "write a device kind as `headway nodes` names it",
}
"""Messages for text that does not have the right form, by its pattern."""
_FILES = {
    "python.requirements": ": the name of a file of workdir that has the list, such as requirements.txt"
}
"""Meaning of a text, by field, where a list in its place is a likely mistake."""


def _message(problem: ErrorDetails, field: Location) -> str:
    context = problem.get("ctx", {})
    if problem["type"] == "extra_forbidden" and field == ("sweep",):
        return (
            "makes several jobs, and this takes one; leave it out, or start the sweep with `headway submit`"
        )
    if problem["type"] == "extra_forbidden":
        return "there is no such field" + _suggestion(field)
    if context.get("pattern") in _PATTERNS:
        return _PATTERNS[context["pattern"]]
    if problem["type"] == "string_type" and isinstance(problem["input"], list | dict):
        given = "a list" if isinstance(problem["input"], list) else "a group of fields"
        return f"must be one text, not {given}{_FILES.get(dotted_path(field), '')}"
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
        elif not (isinstance(value, Mapping) and index == len(location) - 1 and "[" not in str(part)):
            continue  # a scalar or a marker of a key: not a field of the file
        real.append(part)
    return tuple(real)


def _suggestion(field: Location) -> str:
    """Return a hint: the same name elsewhere in the spec, or a similar name in the same group."""
    known = dict(_fields(SweepSpec))
    elsewhere = [path for path in known if path[-1] == field[-1]]
    if elsewhere:
        return f"; did you mean `{dotted_path(elsewhere[0])}`?"
    siblings = {path[-1]: path for path in known if path[:-1] == field[:-1]}
    near = difflib.get_close_matches(str(field[-1]).lower(), siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; there are {', '.join(sorted(siblings))}" if siblings else ""


def _fields(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, info in model.model_fields.items():
        path = (*at, info.alias or name)
        yield path, info
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _fields(info.annotation, path)
