"""Fragments of pages, each of which is rendered, cached and sent to browsers by itself.

The frame of a page is rendered once, and everything that changes is in fragments. A viewer gets the fragments
that changed since its version. A fragment with an unchanged value is not rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment: `macro` with `value`, as the element with the id `id`.

    The macro is one of `templates/fragments.html`, or of another file: `capacity.html/slots`.
    """

    id: str
    macro: str
    value: Any


@dataclass(frozen=True, slots=True)
class Listing:
    """The element `id`, whose children are these fragments in this order. Children are added and removed."""

    id: str
    fragments: tuple[Fragment, ...]


Content = Fragment | Listing


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure with its name and a note. `share`, from 0 to 1, is drawn as a bar."""

    label: str
    value: str
    note: str = ""
    share: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The last rendering of a fragment. `since` is the version in which it changed."""

    macro: str
    value: Any
    html: str
    since: int


@dataclass(frozen=True, slots=True)
class Order:
    """The children of a listing. `since` is the version in which they changed."""

    ids: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True)
class PageVersion:
    """The fragments of a page at one version. Versions increase by one with every change."""

    version: int = 0
    fragments: Mapping[str, Rendered] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)

    def html(self, fragment_id: str) -> str:
        """Return the HTML of a fragment, or of all children of a listing."""
        order = self.orders.get(fragment_id)
        if order is None:
            return self.fragments[fragment_id].html
        return "".join(self.fragments[one].html for one in order.ids)


def redrawn(old: PageVersion, contents: Iterable[Content], render: Callable[[Fragment], str]) -> PageVersion:
    """Return the next version, or `old` if nothing has changed. Only changed fragments are rendered."""
    version = old.version + 1
    fragments: dict[str, Rendered] = {}
    orders: dict[str, Order] = {}

    def take(fragment: Fragment) -> None:
        known = old.fragments.get(fragment.id)
        if known is None or known.macro != fragment.macro or known.value != fragment.value:
            known = Rendered(fragment.macro, fragment.value, render(fragment), version)
        fragments[fragment.id] = known

    for content in contents:
        if isinstance(content, Fragment):
            take(content)
            continue
        for fragment in content.fragments:
            take(fragment)
        ids = tuple(fragment.id for fragment in content.fragments)
        was = old.orders.get(content.id)
        orders[content.id] = was if was is not None and was.ids == ids else Order(ids, version)
    same = fragments.keys() == old.fragments.keys() and orders.keys() == old.orders.keys()
    newest = max((one.since for one in fragments.values()), default=0)
    if same and max((one.since for one in orders.values()), default=newest) < version and newest < version:
        return old
    return PageVersion(version, fragments, orders)


def changes(page: PageVersion, since: int) -> dict[str, Any]:
    """Return the changes since version `since`: HTML by fragment, and children by listing.

    The result is empty if nothing has changed. For version 0, it has everything.
    """
    found = {
        "pieces": {name: one.html for name, one in page.fragments.items() if one.since > since},
        "orders": {name: list(one.ids) for name, one in page.orders.items() if one.since > since},
    }
    return {name: changed for name, changed in found.items() if changed}
