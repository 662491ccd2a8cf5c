"""YAML of users: the document with the line of every field, and values that YAML reads otherwise than people do."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from headway.contract.spec_warnings import ODD_SPACE, character_name, shortened
from headway.errors import HeadwayError

Location = tuple[str | int, ...]
_DEEPEST = 20
_MOST_ALIASES = 20
_MOST_OF_VALUE = 1_048_576
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
_YAML_TAG = "tag:yaml.org,2002:"
_NUMBER_TAGS = frozenset({f"{_YAML_TAG}int", f"{_YAML_TAG}float"})
_TEXT_TAGS = frozenset({f"{_YAML_TAG}str", f"{_YAML_TAG}merge", f"{_YAML_TAG}value"})
_KINDS = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
}
"""The kind of value that YAML makes of one without quotes, by the last part of its tag."""
_COMMENT = re.compile(r"[ \t]+#[^\r\n]*")
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Ends of a line as editors count them. YAML also counts U+0085, U+2028 and U+2029."""
_JOINED = re.compile(r"\\[ \t]*(?:\r\n|\r|\n)[ \t]*[^\s#]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REMEDIES = (
    (
        r"expected ',' or .*<stream end>",
        "a { or [ is not closed",
        "Close it. A # behind a space begins a comment: put a value that holds one in quotes.",
    ),
    (
        r"for merging",
        "<< takes the fields of a group, such as `<<: *name`",
        "Put << in quotes if it is a name.",
    ),
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


_BOOL = f"{_YAML_TAG}bool"


class JobFileError(HeadwayError):
    """Error: the file is not a valid job file."""


class _Loader(yaml.SafeLoader):
    """Loader of plain YAML, in which a lone = or << is text."""


_Loader.yaml_implicit_resolvers = {
    first: resolvers for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items() if first != "="
}
_Loader.add_constructor(f"{_YAML_TAG}merge", lambda _, node: str(node.value))


@dataclass(slots=True)
class YamlSource:
    """Positions of fields in a text, and remarks about values."""

    name: str
    text: str
    text_lines: list[str] = field(init=False)
    line_starts: list[int] = field(init=False)
    lines: dict[Location, int] = field(default_factory=dict)
    odd_numbers: dict[Location, str] = field(default_factory=dict)
    """Numbers that YAML reads otherwise than people do, with what to write."""
    comments: dict[Location, str] = field(default_factory=dict)
    """Comments behind unquoted values."""
    nothings: dict[Location, str] = field(default_factory=dict)
    """Values that YAML reads as nothing, as written: `~`, `null` or empty."""
    unused_anchors: dict[str, int] = field(default_factory=dict)
    """Lines of names of values (`&name`) that no alias (`*name`) uses."""

    def __post_init__(self) -> None:
        """Divide the text into lines as editors do."""
        self.text_lines = _LINE_END.split(self.text)
        self.line_starts = [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    def line_at(self, index: int) -> int:
        """Return the number of the line that holds the character with this index."""
        return bisect_right(self.line_starts, index)

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
    source = YamlSource(name, text)
    try:
        _refuse_excess(text, source, most_characters)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _index(root, (), source)
        document = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise _explained(error, source) from None
    except yaml.reader.ReaderError as error:
        raise JobFileError(
            f"{name}:{source.line_at(error.position)}: holds {character_name(text[error.position])}, which YAML does not take.",
            "Remove it.",
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise JobFileError(f"{name}: {error}.", "Correct the YAML.") from None
    if root is None or not isinstance(document, dict):
        raise JobFileError(f"{name} is not a job file.", "A job has at least `name` and `run`, one per line.")
    return document, source, root


def scalar(text: str) -> tuple[Any, str]:
    """Return the value of a text as YAML, and what is odd about it as a number; empty if nothing is.

    Raises:
        JobFileError: the text is not the YAML of a value.
    """
    indented = text.replace("\n", "\n ")
    value, source, _ = read_yaml(f"value:\n {indented}", "value", _MOST_OF_VALUE)
    return value["value"], source.odd_numbers.get(("value",), "")


def joined_lines(root: yaml.Node, source: YamlSource) -> int:
    """Return the first line of `run` that ends with a backslash and that YAML joins with the next; 0 if there is none."""
    for key, value in root.value if isinstance(root, yaml.MappingNode) else []:
        if key.value == "run" and isinstance(value, yaml.ScalarNode) and value.style in {None, "'", ">"}:
            found = _JOINED.search(source.text, value.start_mark.index, value.end_mark.index)
            return source.line_at(found.start()) if found else 0
    return 0


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
    for token in yaml.scan(text, Loader=_Loader):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if isinstance(token, yaml.AliasToken):
            aliases += 1
            source.unused_anchors.pop(token.value, None)
        if isinstance(token, yaml.AnchorToken):
            source.unused_anchors[token.value] = source.line_at(token.start_mark.index)
        where = f"{name}:{source.line_at(token.start_mark.index)}"
        if depth > _DEEPEST:
            raise JobFileError(f"{where}: nested more than {_DEEPEST} deep.", "Nest it less.")
        if aliases > _MOST_ALIASES:
            raise JobFileError(f"{where}: more than {_MOST_ALIASES} aliases (*name).", "Write them out.")
        if isinstance(token, yaml.TagToken) and token.value not in {("!!", "str"), ("!", "")}:
            raise JobFileError(
                f"{where}: {shortened(token.value[0] or '')}{shortened(token.value[1])} is a tag of YAML, which a job file has not.",
                "Leave it out; put a value that begins with ! in quotes as a whole.",
            )


def _explained(error: yaml.MarkedYAMLError, source: YamlSource) -> JobFileError:
    mark = error.problem_mark or error.context_mark
    if mark is not None and "<stream end>" in (error.problem or "") and error.context_mark is not None:
        mark = error.context_mark  # the bracket, not the end of the file
    line = source.line_at(mark.index) if mark is not None else 0
    where = f"{source.name}:{line}" if line else source.name
    said = f"{error.problem or ''} {error.context or ''}"
    problem, remedy = error.problem or error.context, "Correct the YAML."
    for pattern, means, what_to_do in _REMEDIES:
        if re.search(pattern, said):
            problem, remedy = means or problem, what_to_do
            break
    odd = next((found for one in range(line, 0, -1) if (found := source.odd_space_in(one))), "")
    return JobFileError(f"{where}: {problem}{f'; {odd}' if odd else ''}.", remedy)


def _index(node: yaml.Node, at: Location, source: YamlSource, within: tuple[yaml.Node, ...] = ()) -> None:
    """Store the line of every field. Refuse what YAML would accept and nobody means, such as a duplicate field."""
    line = source.lines.setdefault(at, source.line_at(node.start_mark.index))
    if node in within:
        raise JobFileError(
            f"{source.name}:{line}: {dotted_path(at)} holds itself, by an alias (*name).",
            "Write the value out, or put it in quotes if it begins with *.",
        )
    if isinstance(node, yaml.ScalarNode):
        _refuse_unreadable(node, at, source)
        if odd := _odd_number(node):
            source.odd_numbers[at] = odd
        comment = _COMMENT.match(source.text, node.end_mark.index)
        if comment is not None and node.style is None and node.value:
            source.comments[at] = comment[0].strip()
        if node.tag == f"{_YAML_TAG}null":
            source.nothings[at] = node.value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _index(item, (*at, index), source, (*within, node))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = source.line_at(key.start_mark.index)
            if at[:1] == ("after",) and key.tag == _BOOL and key.value == "on":
                key.tag = f"{_YAML_TAG}str"  # the name of a field, which YAML 1.1 reads as true
            here = (*at, _name_of(key, line, source))
            if here in source.lines:
                raise JobFileError(
                    f"{source.name}:{line}: {dotted_path(here)} is given twice, first in line {source.lines[here]}.",
                    "Keep one.",
                )
            source.lines[here] = line
            _index(value, here, source, (*within, node))


def _name_of(key: yaml.Node, line: int, source: YamlSource) -> str:
    """Return the name of a field as written. Refuse one that YAML does not read as text."""
    where = f"{source.name}:{line}"
    if not isinstance(key, yaml.ScalarNode):
        raise JobFileError(
            f"{where}: a group or a list stands where a name should.",
            "Put a value that begins with { or [ in quotes as a whole.",
        )
    name = str(key.value)
    if key.tag not in _TEXT_TAGS:
        kind = _KINDS.get(key.tag.removeprefix(_YAML_TAG), "no text")
        said = f"the name `{shortened(name)}`" if name else "an empty name"
        raise JobFileError(
            f"{where}: YAML reads {said} as {kind}.", f'Put it in quotes: "{shortened(name)}": …'
        )
    if found := ODD_SPACE.search(name):
        raise JobFileError(
            f"{where}: {character_name(found[0])} stands where a space or nothing should.",
            "Replace it by a plain space; it often comes with text from a web page.",
        )
    if found := _SURROGATE.search(name):
        raise JobFileError(
            f"{where}: a name holds U+{ord(found[0]):04X}, half a character.", "Write the whole character."
        )
    return name


def _refuse_unreadable(node: yaml.ScalarNode, at: Location, source: YamlSource) -> None:
    """Refuse a value that has the form of a number or a date and is none, such as 2026-13-45."""
    try:
        _value_of(node) if node.tag not in _TEXT_TAGS else None
    except ValueError:
        kind = _KINDS.get(node.tag.removeprefix(_YAML_TAG), "a value")
        size = f" of {len(node.value):,} characters" if len(node.value) > 60 else ""
        raise JobFileError(
            f"{source.name}:{source.line_at(node.start_mark.index)}: {dotted_path(at)}: `{shortened(node.value, 30)}`{size} has the form "
            f"of {kind} and is none that can be read.",
            "Correct it, or put it in quotes if it is text.",
        ) from None


def _value_of(node: yaml.ScalarNode) -> Any:
    """Return what YAML reads a scalar as. Raises ValueError if its form promises a value that it is not."""
    return _Loader("").construct_object(node)


def _odd_number(node: yaml.ScalarNode) -> str:
    """Return what to write instead of a number in a notation of YAML; empty for a decimal number, and for text."""
    if node.tag not in _NUMBER_TAGS or node.style is not None:
        return ""
    written = node.value
    value = _value_of(node)
    sign, digits = ("-" if written.startswith("-") else ""), written.lstrip("+-")
    if ":" in written:
        return f"YAML reads {written} as {value}: write that number, or a duration such as {value}s"
    if "_" in written:
        return f"{written} holds _: write {value}"
    if re.match(r"0[xXbBoO]", digits):
        return f"{written} is not decimal: write {value}"
    if re.match(r"0\d", digits):
        plain = re.sub(r"^0+(?=\d)", "", digits)
        plain = f"{sign if plain != '0' else ''}{plain}"
        read = "" if str(value) == plain else f", which YAML reads as {value}"
        return f"{written} begins with 0{read}: write {plain}"
    return ""


def dotted_path(location: Location) -> str:
    """Return the name of a field for users."""
    return ".".join(str(part) for part in location) or "the job"


def line_of(location: Location, lines: Mapping[Location, int]) -> int:
    """Return the line of a field, or of the nearest group around it that has one; 0 if there is none."""
    return next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), 0)
