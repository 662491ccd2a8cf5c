"""Expressions that many queries need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, any_, literal
from sqlalchemy.dialects.postgresql import ARRAY


def one_of(column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Whether a column has one of the values, which are sent as one array.

    With IN every number of values makes a statement of its own, which is compiled, kept and prepared for itself here and in the
    server; and no statement can have more than 32,767.
    """
    return column == any_(literal(list(values), ARRAY(column.type)))
