"""Text of jobs on a terminal: control and format characters are shown, so that they do not act on it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from headway.visible_text import visible


class PlainConsole(Console):
    """Console whose only escape sequences are those of its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, whose text has no control or format characters."""
        for one in super().render(renderable, options):
            yield one if one.control or one.text.isprintable() else one._replace(text=visible(one.text))
