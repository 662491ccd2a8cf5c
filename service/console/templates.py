"""Rendering of HTML templates: whole pages, and single fragments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headway.visible_text import visible
from service.console.html.fragments import Fragment, PageVersion
from service.console.html.palette import mark_of
from service.console.html.questions import question
from service.console.html.text import NONE

HERE = Path(__file__).parent


@cache  # with every template that was compiled in it
def environment() -> Environment:
    """Return a Jinja environment that escapes all values and raises an error for undefined names."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters["data"] = as_data
    made.filters["mark"] = mark_of
    made.globals["question"] = question
    made.globals["none"] = NONE
    return made


def _shown(value: Any) -> Any:
    """Return a value of a template in which no control or format character acts on the page.

    What a form sends back stays as it was entered: templates pass it through `e`, whose result is no plain string.
    """
    return visible(value) if type(value) is str else value


def as_data(value: Any) -> Markup:
    """Return JSON that is safe inside a `script` element of the type `application/json`."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return Markup(text)  # noqa: S704  # nothing in it can end the element


class Templates:
    """The templates, which are compiled once."""

    def __init__(self) -> None:
        self._environment = environment()
        self._macros: Any = self._environment.get_template("fragments.html").module

    def fragment(self, fragment: Fragment) -> str:
        """Return a fragment as an HTML element."""
        file, _, macro = fragment.macro.rpartition("/")
        macros = self._macros if not file else self._environment.get_template(file).module
        return str(getattr(macros, macro)(fragment.id, fragment.value)).strip()

    def page(self, name: str, values: Mapping[str, Any], page_version: PageVersion | None = None) -> str:
        """Return a page as HTML.

        In its template, `live(id)` is the HTML of a fragment or of a listing's children.
        """

        def live(fragment_id: str) -> Markup:
            assert page_version is not None, "a page with live fragments has a page_version"
            return Markup(page_version.html(fragment_id))  # noqa: S704 - rendered, and escaped, by a template

        return self._environment.get_template(name).render(**values, live=live, page_version=page_version)
