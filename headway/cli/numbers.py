"""Numbers of the command line in the notation of job files."""

from __future__ import annotations

import re
from copy import copy
from typing import Any

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PADDED = re.compile(r"[+-]?0\d")
_KINDS = frozenset({"int", "int range", "float", "float range"})
"""Names of Click's types of numbers. They take whatever Python does: `010`, `1_0`, and the digits of every script."""


def read_plainly(command: Any) -> None:
    """Let every number of the command, and of its subcommands, be refused in a notation that a job file refuses."""
    for parameter in command.params:
        if parameter.type.name in _KINDS:
            parameter.type = _plain(parameter.type)  # a copy, because Click shares types without bounds
    for inner in getattr(command, "commands", {}).values():
        read_plainly(inner)


def _plain(type_: Any) -> Any:
    found = copy(type_)

    def convert(value: Any, parameter: Any, context: Any) -> Any:
        if isinstance(value, str):
            if _PADDED.match(value):
                plain = re.sub(r"^([+-]?)0+(?=\d)", r"\1", value)
                found.fail(f"{value!r} begins with 0; write it without: {plain}", parameter, context)
            if _PLAIN.fullmatch(value) is None:
                kind = "whole number" if found.name.startswith("int") else "number"
                found.fail(f"{value!r} is no {kind} in decimal digits, such as 10", parameter, context)
        return type_.convert(value, parameter, context)

    found.convert = convert
    return found
