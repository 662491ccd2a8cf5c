"""YAML of users: the document with the line of every field, and values that YAML reads otherwise than people do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from headway.contract.spec_warnings import ODD_SPACE, character_name, shortened
from headway.errors import HeadwayError

Location = tuple[str | int, ...]
_DEEPEST = 20
_MOST_ALIASES = 20
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_COMMENT = re.compile(r"[ \t]+#.*")
_REMEDIES = (
    (
        r"mapping values are not allowed",
        "a value that holds `: ` must be in quotes",
        "Put the whole value in quotes, or write `run: |` and the command in the next line, indented.",
    ),
    (r"\\t", "a tab cannot indent", "Use spaces."),
    (
        r"unknown escape character",
        "in double quotes, \\ begins an escape",
        "Put the value in single quotes.",
    ),
    (
        r"another document",
        "a second document begins here, and a file holds one job",
        "Write the other job into a file of its own.",
    ),
    (
        r"undefined alias|alphabetic or numeric character",
        "a value that begins with * or & must be in quotes",
        "Put the whole value in quotes.",
    ),
    (r"cannot start any token", "", "Put the whole value in quotes."),
    (
        r"block end|expected ':'|expected ','",
        "",
        "Indent the fields of a group alike, and put a value that holds quotes, brackets or `: ` in quotes as a whole.",
    ),
)
"""Errors of the YAML parser, what they usually mean (empty: as the parser says), and what to do."""


class JobFileError(HeadwayError):
    """Error: the file is not a valid job file."""


@dataclass(slots=True)
class YamlSource:
    """Positions of fields in a text, and remarks about values."""

    name: str
    text_lines: list[str]
    lines: dict[Location, int] = field(default_factory=dict)
    odd_numbers: dict[Location, str] = field(default_factory=dict)
    """Numbers that YAML reads otherwise than people do, with what to write."""

    def odd_space_in(self, line: int) -> str:
        """Return a remark on a character in the line that looks like a space; empty if there is none."""
        found = ODD_SPACE.search(self.text_lines[line - 1]) if 0 < line <= len(self.text_lines) else None
        if found is None:
            return ""
        return f"line {line} holds {character_name(found[0])}, which is no space to YAML; replace it by a plain one"


def read_yaml(text: str, name: str, most_characters: int) -> tuple[dict[str, Any], YamlSource, yaml.Node]:
    """Return the document, the positions of its fields and its nodes.

    Raises:
        JobFileError: the text is no YAML, or no mapping.
    """
    source = YamlSource(name, text.splitlines())
    try:
        _refuse_excess(text, source, most_characters)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _index(root, (), source)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise _explained(error, source) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise JobFileError(f"{name}: {error}.", "Correct the YAML.") from None
    except ValueError as error:  # a date such as 2026-13-45
        raise JobFileError(f"{name}: {error}.", "Correct the value, or put it in quotes.") from None
    if root is None or not isinstance(document, dict):
        raise JobFileError(f"{name} is not a job file.", "A job has at least `name` and `run`, one per line.")
    return document, source, root


def scalar(text: str) -> tuple[Any, str]:
    """Return the value of a text as YAML, and what is odd about it as a number; empty if nothing is."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return yaml.safe_load(text), _odd_number(node) if isinstance(node, yaml.ScalarNode) else ""


def cut_by_comment(root: yaml.Node, key: str, source: YamlSource) -> str:
    """Return the comment that ends an unquoted value at the top of the document; empty if there is none."""
    for one, value in root.value if isinstance(root, yaml.MappingNode) else []:
        if one.value == key and isinstance(value, yaml.ScalarNode) and value.style is None:
            rest = source.text_lines[value.end_mark.line : value.end_mark.line + 1]
            found = _COMMENT.match(rest[0], value.end_mark.column) if rest and value.value else None
            return found[0].strip() if found else ""
    return ""


def _refuse_excess(text: str, source: YamlSource, most_characters: int) -> None:
    """Refuse a text that would take long to parse, or become huge by aliases."""
    name = source.name
    if len(text) > most_characters:
        number, line = max(enumerate(source.text_lines, 1), key=lambda one: len(one[1]))
        raise JobFileError(
            f"{name} has more than {most_characters:,} characters: {len(text):,}. The longest line is {number}, "
            f"{shortened(line.strip(), 30)!r}.",
            "Make it shorter: put long values of `env` and long commands into files of `workdir`.",
        )
    depth = aliases = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        aliases += isinstance(token, yaml.AliasToken)
        where = f"{name}:{token.start_mark.line + 1}"
        if depth > _DEEPEST:
            raise JobFileError(f"{where}: nested more than {_DEEPEST} deep.", "Nest it less.")
        if aliases > _MOST_ALIASES:
            raise JobFileError(f"{where}: more than {_MOST_ALIASES} aliases (*name).", "Write them out.")


def _explained(error: yaml.MarkedYAMLError, source: YamlSource) -> JobFileError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 0
    where = f"{source.name}:{line}" if line else source.name
    said = f"{error.problem or ''} {error.context or ''}"
    problem, remedy = error.problem or error.context, "Correct the YAML."
    for pattern, means, what_to_do in _REMEDIES:
        if re.search(pattern, said):
            problem, remedy = means or problem, what_to_do
            break
    odd = next((found for one in range(line, 0, -1) if (found := source.odd_space_in(one))), "")
    return JobFileError(f"{where}: {problem}{f'; {odd}' if odd else ''}.", remedy)


def _index(node: yaml.Node, at: Location, source: YamlSource) -> None:
    """Store the line of every field. Refuse a duplicate field, which YAML would accept."""
    source.lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        if odd := _odd_number(node):
            source.odd_numbers[at] = odd
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _index(item, (*at, index), source)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            line = key.start_mark.line + 1
            if isinstance(key.value, str) and (found := ODD_SPACE.search(key.value)):
                raise JobFileError(
                    f"{source.name}:{line}: {character_name(found[0])} stands where a space or nothing should.",
                    "Replace it by a plain space; it often comes with text from a web page.",
                )
            if here in source.lines:
                raise JobFileError(
                    f"{source.name}:{line}: {dotted_path(here)} is given twice, first in line {source.lines[here]}.",
                    "Keep one.",
                )
            source.lines[here] = line
            _index(value, here, source)


def _odd_number(node: yaml.ScalarNode) -> str:
    """Return what to write instead of a number in a notation of YAML; empty for a decimal number, and for text."""
    if node.tag not in _NUMBER_TAGS or node.style is not None:
        return ""
    written = node.value
    value = yaml.safe_load(written)
    digits = written.lstrip("+-")
    if ":" in written:
        return f"YAML reads {written} as {value}: write that number, or a duration such as {value}s"
    if "_" in written:
        return f"{written} holds _: write {value}"
    if re.match(r"0[xXbBoO]", digits):
        return f"{written} is not decimal: write {value}"
    if re.match(r"0\d", digits):
        plain = digits.lstrip("0") or "0"
        read = "" if str(value) == plain else f", which YAML reads as {value}"
        return f"{written} begins with 0{read}: write {plain}"
    return ""


def dotted_path(location: Location) -> str:
    """Return the name of a field for users."""
    return ".".join(str(part) for part in location) or "the job"


def line_of(location: Location, lines: Mapping[Location, int]) -> int:
    """Return the line of a field, or of the nearest group around it that has one; 0 if there is none."""
    return next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), 0)
