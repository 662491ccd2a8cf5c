"""HTML from templates: frames of pages, and pieces of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from service.console.pieces import Picture, Piece

HERE = Path(__file__).parent


def environment() -> Environment:
    """Everything that is put into HTML is escaped, and a name that does not exist is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["data"] = as_data
    return made


def as_data(value: Any) -> Markup:
    """JSON that is safe inside a `script` element of the type `application/json`."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return Markup(text)  # noqa: S704 - nothing in it can end the element


class Templates:
    """The templates, read once."""

    def __init__(self) -> None:
        self._environment = environment()
        self._macros: Any = self._environment.get_template("pieces.html").module

    def piece(self, piece: Piece) -> str:
        """A piece's element."""
        return str(getattr(self._macros, piece.macro)(piece.id, piece.value)).strip()

    def page(self, name: str, values: Mapping[str, Any], picture: Picture | None = None) -> str:
        """A whole page; in its template `live(id)` is the HTML of a piece or of a listing's children."""

        def live(piece_id: str) -> Markup:
            assert picture is not None, "a page with live pieces has a picture"
            return Markup(picture.html(piece_id))  # noqa: S704 - rendered, and escaped, by a template

        return self._environment.get_template(name).render(**values, live=live, picture=picture)
