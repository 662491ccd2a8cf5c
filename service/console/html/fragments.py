"""Fragments of pages, each of which is rendered, cached and sent to browsers by itself.

The frame of a page is rendered once, and everything that changes is in fragments. A viewer gets the fragments
that changed since its version. A fragment with an unchanged value is not rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """A fragment: `macro` with `value`, as the element with the id `id`.

    The macro is one of `templates/pieces.html`, or of another file: `capacity.html/slots`.
    """

    id: str
    macro: str
    value: Any


@dataclass(frozen=True, slots=True)
class Listing:
    """The element `id`, whose children are these fragments in this order. Children are added and removed."""

    id: str
    pieces: tuple[Piece, ...]


Content = Piece | Listing


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
    pieces: Mapping[str, Rendered] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)

    def html(self, piece_id: str) -> str:
        """Return the HTML of a fragment, or of all children of a listing."""
        order = self.orders.get(piece_id)
        if order is None:
            return self.pieces[piece_id].html
        return "".join(self.pieces[one].html for one in order.ids)


def redrawn(old: PageVersion, contents: Iterable[Content], render: Callable[[Piece], str]) -> PageVersion:
    """Return the next version, or `old` if nothing has changed. Only changed fragments are rendered."""
    version = old.version + 1
    pieces: dict[str, Rendered] = {}
    orders: dict[str, Order] = {}

    def take(piece: Piece) -> None:
        known = old.pieces.get(piece.id)
        if known is None or known.macro != piece.macro or known.value != piece.value:
            known = Rendered(piece.macro, piece.value, render(piece), version)
        pieces[piece.id] = known

    for content in contents:
        if isinstance(content, Piece):
            take(content)
            continue
        for piece in content.pieces:
            take(piece)
        ids = tuple(piece.id for piece in content.pieces)
        was = old.orders.get(content.id)
        orders[content.id] = was if was is not None and was.ids == ids else Order(ids, version)
    same = pieces.keys() == old.pieces.keys() and orders.keys() == old.orders.keys()
    changed = any(one.since == version for one in pieces.values()) or any(
        one.since == version for one in orders.values()
    )
    return old if same and not changed else PageVersion(version, pieces, orders)


def changes(picture: PageVersion, since: int) -> dict[str, Any]:
    """Return the changes since version `since`: HTML by fragment, and children by listing.

    The result is empty if nothing has changed. For version 0, it has everything.
    """
    found: dict[str, Any] = {}
    pieces = {name: one.html for name, one in picture.pieces.items() if one.since > since}
    orders = {name: list(one.ids) for name, one in picture.orders.items() if one.since > since}
    if pieces:
        found["pieces"] = pieces
    if orders:
        found["orders"] = orders
    return found
