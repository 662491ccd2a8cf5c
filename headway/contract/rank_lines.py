"""Messages of a rank as JSON lines.

Standard library only, because every rank imports it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, get_args

from headway.contract.runtime import Message, Metrics, Stepped
from headway.contract.values.checks import check_of, is_finite

_TYPES: dict[str, type[Any]] = {kind.TYPE: kind for kind in get_args(Message)}


def to_line(message: Message) -> str:
    """Return the message as one JSON line, newline included."""
    return json.dumps({"type": message.TYPE, **asdict(message)}, separators=(",", ":")) + "\n"


def from_line(line: str) -> Message:
    """Read the message in `line`. Unknown fields are ignored, so that an older agent reads a newer rank.

    Raises:
        ValueError: the line is not JSON, or `from_fields` refuses it.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply for a message of a rank") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not a message of a rank: {line[:80]!r}")  # noqa: TRY004 - one kind of error
    return from_fields(fields)


def from_fields(fields: dict[str, Any]) -> Message:
    """Return the message with these fields, as parsed from JSON.

    A script may write anything into its control folder, so every value is checked. Reported values that are not finite are left out.

    Raises:
        ValueError: the type is unknown, or a field is missing or has a wrong value.
    """
    kind = _TYPES.get(str(fields.get("type", "")))
    if kind is None:
        raise ValueError(f"no message of a rank has the type {fields.get('type')!r}"[:200])
    known = {}
    for name, is_right in _CHECKS[kind.TYPE]:
        if name in fields:
            known[name] = value = fields[name]
            if not is_right(value):
                raise ValueError(f"{name} of a {kind.TYPE} message cannot be {value!r}"[:200])
    if kind in (Metrics, Stepped) and "values" in known:
        known["values"] = {name: float(one) for name, one in known["values"].items() if is_finite(one)}
    for name in ("local_batches", "rank_sample_s", "straggler_times", "memory", "unanswered", "waits_for"):
        if isinstance(known.get(name), list):
            known[name] = tuple(known[name])
    try:
        message: Message = kind(**known)
    except TypeError as error:
        raise ValueError(f"a field of a {kind.TYPE} message is missing") from error
    return message


_CHECKS = {
    kind.TYPE: tuple((one.name, check_of(one.name, str(one.type))) for one in fields(kind))
    for kind in _TYPES.values()
}
"""Checks of the fields by type of message, built once because ranks report progress many times a second."""
