"""Text of jobs on a terminal: control characters are shown, so that they do not act on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_SHOWN: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
}


def visible(text: str) -> str:
    r"""Return the text with C0 and C1 control characters, except tabs and line ends, as `\xNN`."""
    return text.translate(_SHOWN)


class PlainConsole(Console):
    """Console whose only escape sequences are those of its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, whose text has no control characters."""
        for one in super().render(renderable, options):
            yield one if one.control or one.text.isprintable() else one._replace(text=visible(one.text))
