"""Conversion between rows and records whose fields bear the names of columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def record_of(kind: type[Record], row: Any, **computed: Any) -> Record:
    """Return the dataclass or model of a row. Each field is a column of its name, or one of `computed`.

    Values are converted to the types of the fields: text to enums, lists to tuples. Other columns are ignored.
    """
    columns = row._mapping if isinstance(row, Row) else row  # noqa: SLF001 - SQLAlchemy's public name for it
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    record: Record = _ADAPTERS[kind].validate_python({**columns, **computed})
    return record


def values_of(record: DataclassInstance, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a record by name, as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in without}
