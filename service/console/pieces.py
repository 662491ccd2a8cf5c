"""What a page consists of: pieces that are rendered, kept and sent to browsers each by itself.

A page's frame is rendered once. Everything that changes lies in pieces. Whoever looks gets the pieces that have changed
since what they have; two pieces with equal values are never rendered twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """`macro` of `templates/pieces.html` over `value`, as the element with the id `id`."""

    id: str
    macro: str
    value: Any


@dataclass(frozen=True, slots=True)
class Listing:
    """The element `id`, whose children are these pieces in this order. They come and go."""

    id: str
    pieces: tuple[Piece, ...]


Content = Piece | Listing


@dataclass(frozen=True, slots=True)
class Rendered:
    """A piece as it was rendered last. `since` is the version in which it became so."""

    macro: str
    value: Any
    html: str
    since: int


@dataclass(frozen=True, slots=True)
class Order:
    """The children of a listing. `since` is the version in which they became these."""

    ids: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A page's pieces at one version; versions grow by one with every change."""

    version: int = 0
    pieces: Mapping[str, Rendered] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)

    def html(self, piece_id: str) -> str:
        """Of a piece, or of all children of a listing."""
        order = self.orders.get(piece_id)
        if order is None:
            return self.pieces[piece_id].html
        return "".join(self.pieces[one].html for one in order.ids)


def redrawn(old: Picture, contents: Iterable[Content], render: Callable[[Piece], str]) -> Picture:
    """The next picture; the same one if nothing has changed. Only what differs is rendered."""
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
    return old if same and not changed else Picture(version, pieces, orders)


def changes(picture: Picture, since: int) -> dict[str, Any]:
    """What whoever has version `since` lacks: HTML by piece, and children by listing. Empty when they lack nothing.

    A page of version 0 has nothing: it gets everything.
    """
    found: dict[str, Any] = {}
    pieces = {name: one.html for name, one in picture.pieces.items() if one.since > since}
    orders = {name: list(one.ids) for name, one in picture.orders.items() if one.since > since}
    if pieces:
        found["pieces"] = pieces
    if orders:
        found["orders"] = orders
    return found
