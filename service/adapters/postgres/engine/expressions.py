"""SQL expressions that many queries share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, any_, literal
from sqlalchemy.dialects.postgresql import ARRAY


def one_of(column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values, which are sent as one array.

    With IN, every number of values makes a separate statement, which client and server compile, prepare and
    cache separately. A statement also cannot have more than 32,767 parameters.
    """
    return column == any_(literal(list(values), ARRAY(column.type)))
