"""A page as one object: its address, its place in the navigation, its reader and its template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from service.api.http.context import ApiContext
from service.console.html.fragments import Content, Fragment


@dataclass(frozen=True, slots=True)
class Viewer:
    """Rights of a viewer that change a page. `projects` is None for all projects."""

    projects: frozenset[str] | None
    may_control: bool = False
    may_operate: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a live page: its name, its subject and the rights of its viewers."""

    page: str
    sight: Viewer
    about: str = ""
    state: str = ""
    project: str = ""
    owner: str = ""
    cursor: str = ""
    window: str = ""
    """The length of the chart of slots over time; empty on pages without it."""
    order: str = ""
    """The order of the table; empty on pages without a choice."""

    @property
    def query(self) -> str:
        """The state of the page as the query of its address."""
        names = ("state", "project", "owner", "cursor", "window", "order")
        given = {name: getattr(self, name) for name in names}
        return urlencode({name: value for name, value in given.items() if value})


Memory = dict[str, Any]
"""Data that the reader of a live page keeps between its readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """A page at `/{name}` about everything that its viewer may see, or about one project.

    A module of `pages` that has one as `PAGE` adds it. `read` returns the fragments. The template `plain.html`
    shows a heading and the fragments in their order.
    """

    name: str
    label: str
    """Name in the navigation, and the heading."""
    read: Callable[[ApiContext, Key, Memory], Awaitable[list[Content]]]
    template: str = "plain.html"


def address_of(key: Key, cursor: str = "") -> str:
    """Return the address of a listing, starting at a cursor."""
    return f"/{key.page}?{replace(key, cursor=cursor).query}"


def pager(key: Key, next_cursor: str | None) -> Fragment:
    """Return the links to the first and the next page of a listing."""
    first = address_of(key) if key.cursor else ""
    return Fragment("pager", "pager", (first, address_of(key, next_cursor) if next_cursor else ""))
