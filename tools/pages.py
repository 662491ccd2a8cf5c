"""Parser of documentation pages: code blocks, and the command lines in them.

Tests use it to run the blocks of the quickstart, and to check that the command lines of all other pages exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHELL = frozenset({"sh", "bash", "console"})
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"`([^`\n]+)`")
_PROMPT = "$ "
_ENDS = re.compile(r"^[();<>|&]+$")


@dataclass(frozen=True, slots=True)
class Block:
    """Code block between two fences of a page."""

    page: Path
    line: int
    """Number of its first line in the page, from 1."""
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments, as a shell would start it."""

    page: Path
    line: int
    words: tuple[str, ...]
    whole: bool
    """True in a block, to be copied and run. False in a sentence, where it may be an incomplete command."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {shlex.join(self.words)}"


def all_pages() -> list[Path]:
    """Return all pages except those that `python -m tools.reference` writes."""
    written = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("deploy/**/*.md"),
    ]
    return sorted(page for page in written if page.parent.name != "reference")


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = found["indent"]
        lines = [line.removeprefix(indent) for line in found["text"].splitlines()]
        first = text.count("\n", 0, found.start()) + 2
        yield Block(page, first, found["language"], "\n".join(lines))


def commands(page: Path, programs: Sequence[str]) -> Iterator[Command]:
    """Yield the command lines that start one of these programs, in shell blocks and in sentences."""
    for block in blocks(page):
        if block.language in SHELL or not block.language:
            yield from _in_block(block, programs)
    prose = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    for number, line in enumerate(prose.splitlines(), start=1):
        for code in _INLINE.findall(line):
            yield from _in_line(code, programs, page, number, whole=False)


def _in_block(block: Block, programs: Sequence[str]) -> Iterator[Command]:
    shown = block.language not in {"sh", "bash"}  # commands have a prompt, and output follows them
    text = _without_documents(block.text).replace("\\\n", "  ")
    for offset, line in enumerate(text.splitlines()):
        if shown and not line.startswith(_PROMPT):
            continue
        yield from _in_line(line.removeprefix(_PROMPT), programs, block.page, block.line + offset, whole=True)


def _without_documents(text: str) -> str:
    """Return the text with empty lines in place of here-documents (`<<END`)."""
    kept, end = [], None
    for line in text.splitlines():
        begins = re.search(r"<<-?'?(\w+)'?", line) if end is None else None
        kept.append("" if end is not None else line)
        if begins:
            end = begins[1]
        elif line.strip() == end:
            end = None
    return "\n".join(kept)


def _in_line(
    line: str, programs: Sequence[str], page: Path, number: int, *, whole: bool
) -> Iterator[Command]:
    if not any(program in line for program in programs):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in a line that is not a command
        return
    starts = [0, *(at + 1 for at, word in enumerate(words) if _ENDS.match(word))]
    for start, end in zip(starts, [*starts[1:], len(words) + 1], strict=True):
        piece = words[start : end - 1]
        while piece and re.match(r"^\w+=", piece[0]):  # a variable for this command alone
            piece = piece[1:]
        if piece and piece[0] in programs:
            yield Command(page, number, tuple(piece), whole)
