"""Characters that act on a terminal or on the order of a line, shown as escapes, so that text of jobs cannot act.

Rank output, file names and error messages may hold them by accident or on purpose. U+202E, for instance, displays the
text behind it backwards ("Trojan Source", CVE-2021-42574).
"""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_FORMATS: Final = (
    0xAD,  # soft hyphen
    0x61C,  # Arabic letter mark
    0x180E,
    0x200B,  # zero-width space; the joiners U+200C and U+200D belong to words and emoji
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # separators of lines and paragraphs, embeddings and overrides
    *range(0x2060, 0x2070),  # isolates and invisible operators
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),  # tags
)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_LINE: Final = {
    **{code: _escape(code) for code in (*_CONTROLS, *_FORMATS)},
    ord("\t"): "\\t",
    ord("\n"): "\\n",
}
_TEXT: Final = {code: shown for code, shown in _LINE.items() if chr(code) not in "\t\n"}


def visible(text: str) -> str:
    r"""Return the text with control and format characters, except tabs and line ends, as `\xNN` or `\uNNNN`."""
    return text if text.isascii() and text.isprintable() else text.translate(_TEXT)


def visible_line(text: str) -> str:
    r"""Return the text as one line: as `visible`, with tabs and line ends as `\t` and `\n`."""
    return text if text.isascii() and text.isprintable() else text.translate(_LINE)
