"""Rules of ignore files, with the meaning that git gives them.

Names and rules are bytes, as for git: a rule in any encoding matches the names in that encoding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t-\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
_NEVER = rb"(?!)"
"""Expression of a rule that matches nothing, such as one with an unclosed `[`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an ignore file. `whole_path` rules match the path, others the last name alone."""

    expression: re.Pattern[bytes]
    whole_path: bool
    folders_only: bool
    keeps: bool


class Rules:
    """The rules of one ignore file, for paths relative to its folder. The last matching rule decides."""

    def __init__(self, content: bytes) -> None:
        lines = content.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def ignores(self, path: str, *, is_folder: bool) -> bool | None:
        """Return True if the rules exclude the path, False if they keep it, None if none matches.

        A caller must not ask for what is in an excluded folder: git excludes all of it.
        """
        whole = os.fsencode(path)
        name = whole.rpartition(b"/")[2]
        for rule in reversed(self._rules):
            if rule.folders_only and not is_folder:
                continue
            if rule.expression.fullmatch(whole if rule.whole_path else name):
                return not rule.keeps
        return None


class FolderRules:
    """The ignore files that apply in one folder: its own, those of the folders above it, and defaults."""

    def __init__(self, lists: Sequence[tuple[str, Rules, str]]) -> None:
        # Each has the prefix that a name gets, and the file's name. The strongest is last.
        self._lists = lists

    @classmethod
    def top(cls, defaults: Iterable[str]) -> FolderRules:
        """Return only the default rules."""
        return cls([("", Rules("\n".join(defaults).encode()), "")])

    def enter(self, name: str) -> FolderRules:
        """Return the rules of the folders above, as they apply inside their folder `name`."""
        return FolderRules([(f"{prefix}{name}/", rules, file) for prefix, rules, file in self._lists])

    def read(self, folder: Path, names: Sequence[str]) -> FolderRules:
        """Return these rules and those in files of the folder with these names, the last the strongest.

        Raises:
            OSError: a file is there and cannot be read.
        """
        files = [folder / name for name in names]
        own = [("", Rules(file.read_bytes()), file.name) for file in files if file.is_file()]
        return FolderRules([*self._lists, *own]) if own else self

    def ignore(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the rules exclude this name in the folder."""
        return self.excluded_by(name, is_folder=is_folder) is not None

    def excluded_by(self, name: str, *, is_folder: bool) -> tuple[str, str] | None:
        """Return the ignore file that excludes this name in the folder; None if the name is kept.

        The file's name (empty for a default rule), and the path of this folder relative to the file's: `a/b/` or empty.
        """
        for prefix, rules, file in reversed(self._lists):
            decision = rules.ignores(prefix + name, is_folder=is_folder)
            if decision is not None:
                return (file, prefix) if decision else None
        return None


def _rule(line: bytes) -> Rule | None:
    if line.startswith(b"#"):
        return None
    text = _without_trailing_spaces(line.removesuffix(b"\r"))
    keeps = text.startswith(b"!")
    text = text.removeprefix(b"!") if keeps else text
    folders_only = text.endswith(b"/")
    text = text.removesuffix(b"/") if folders_only else text
    if not text:
        return None
    whole_path = b"/" in text
    expression = _expression(text.removeprefix(b"/"))
    return Rule(re.compile(expression, re.DOTALL), whole_path, folders_only, keeps)


def _without_trailing_spaces(text: bytes) -> bytes:
    """Return the text without the spaces at its end that no backslash protects."""
    match = re.fullmatch(rb"((?:\\.|\\$|[^\\ ]| +(?! *$))*) *", text, re.DOTALL)
    return text if match is None else match[1]


def _expression(rule: bytes) -> bytes:
    """Translate git's wildcards into a regular expression."""
    parts: list[bytes] = []
    at = 0
    while at < len(rule):
        token = rule[at : at + 1]
        if token == b"*":
            part, at = _stars(rule, at)
        elif token == b"?":
            part, at = rb"[^/]", at + 1
        elif token == b"[":
            found = _bracket(rule, at)
            if found is None:
                return _NEVER
            part, at = found
        elif token == b"\\":
            if at + 1 == len(rule):
                return _NEVER
            part, at = re.escape(rule[at + 1 : at + 2]), at + 2
        else:
            part, at = re.escape(token), at + 1
        parts.append(part)
    return b"".join(parts)


def _stars(rule: bytes, at: int) -> tuple[bytes, int]:
    """Translate a run of `*`. Two or more between slashes match any number of folders."""
    end = at
    while rule[end : end + 1] == b"*":
        end += 1
    starts = at == 0 or rule[at - 1 : at] == b"/"
    if end - at < 2 or not starts:
        return rb"[^/]*", end
    if end == len(rule):
        return rb".*", end
    if rule[end : end + 1] == b"/":
        return rb"(?:.*/)?", end + 1
    if rule[end : end + 2] == rb"\/":
        return rb".*", end
    return rb"[^/]*", end


def _bracket(rule: bytes, at: int) -> tuple[bytes, int] | None:
    """Translate `[…]`, or return None if it is not closed or names an unknown class."""
    at += 1
    negated = rule[at : at + 1] in {b"!", b"^"}
    at += negated
    members: list[bytes] = []
    before: int | None = None  # the character that may begin a range
    first = True
    while first or rule[at : at + 1] != b"]":
        first = False
        token = rule[at : at + 1]
        if token == b"[" and rule[at + 1 : at + 2] == b":":
            end = rule.find(b"]", at + 2)
            if end < 0:
                return None
            if rule[end - 1 : end] == b":" and end - 1 > at + 1:
                known = _CLASSES.get(rule[at + 2 : end - 1])
                if known is None:
                    return None
                members.append(known)
                before, at = None, end + 1
                continue
        if token == b"-" and before is not None and rule[at + 1 : at + 2] not in {b"]", b""}:
            last, at = _member(rule, at + 1)
            if last is None:
                return None
            members.extend([_range(before, last)] if before <= last else [])
            before = None
            continue
        before, at = _member(rule, at)
        if before is None:
            return None
        members.append(_byte(before))
    inside = b"".join(members)
    if negated:
        return (rb"(?:(?!/)[^" + inside + rb"])" if inside else rb"[^/]"), at + 1
    return (rb"(?:(?!/)[" + inside + rb"])" if inside else _NEVER), at + 1


def _member(rule: bytes, at: int) -> tuple[int | None, int]:
    """Return the character at this position, without its backslash, and the position after it."""
    if rule[at : at + 1] == b"\\":
        at += 1
    return (rule[at], at + 1) if at < len(rule) else (None, at)


def _byte(value: int) -> bytes:
    return b"\\x%02x" % value


def _range(first: int, last: int) -> bytes:
    return _byte(first) + b"-" + _byte(last)
