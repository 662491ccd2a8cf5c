"""Rows as records, and records as values of columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

from service.adapters.postgres.engine.records import record_of, values_of


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    name: str
    colour: Colour
    layers: tuple[int, ...]
    price: float | None = None


class PaintView(BaseModel):
    name: str
    colour: Colour


ROW = {"name": "wall", "colour": "red", "layers": [1, 2], "price": None, "other": "not a field"}


def test_a_record_has_the_types_of_its_fields():
    paint = record_of(Paint, ROW)
    assert paint == Paint(name="wall", colour=Colour.RED, layers=(1, 2))
    assert paint.colour is Colour.RED
    assert record_of(PaintView, ROW) == PaintView(name="wall", colour=Colour.RED)


def test_computed_fields_replace_columns():
    assert record_of(Paint, ROW, price=2, name="door") == Paint(
        name="door", colour=Colour.RED, layers=(1, 2), price=2.0
    )


def test_values_of_a_record_leave_out_what_is_named():
    values = values_of(record_of(Paint, ROW), without={"name"})
    assert values == {"colour": Colour.RED, "layers": (1, 2), "price": None}
    assert values["colour"] is Colour.RED
