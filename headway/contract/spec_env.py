"""The part `env` of the job file: its bounds, and values that a user wrote for a shell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from headway.contract.spec_parts import RESERVED_ENV
from headway.contract.values.text import GivenText

ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
SECRET_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]{0,127}$"  # noqa: S105 - of names
MOST_VALUE_BYTES = 32_768
"""Bound of one value. Linux takes 128 KiB for one variable."""
MOST_ENV_BYTES = 512 * 1024
"""Bound of all names and values together, secrets included.

Linux takes a quarter of the stack limit for arguments and environment, usually 2 MiB, with the node's variables.
"""
_REFERENCE = re.compile(r"\$(?:\w+|\{[^}]*\}|\()")
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\$\{\{")
_HOME = re.compile(r"(?:^|:)~(?:/|$|:)")
REFERENCES = (_TEMPLATE, _REFERENCE, _HOME)
"""Patterns of text that a shell or a template would expand."""


EnvName = Annotated[str, Field(pattern=ENV_NAME_PATTERN)]
EnvText = Annotated[GivenText, Field(max_length=MOST_VALUE_BYTES)]
SecretName = Annotated[str, Field(pattern=SECRET_NAME_PATTERN)]


def refuse_reserved(value: Mapping[str, str]) -> None:
    """Raise ValueError for names that Headway sets."""
    taken = sorted(name for name in value if name.startswith("HEADWAY_") or name in RESERVED_ENV)
    if taken:
        raise ValueError(f"{', '.join(taken)}: set by Headway for every rank; choose other names")


def env_problem(env: Mapping[str, str], bytes_of_secrets: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the field and the problem of an environment with which no program could be started; None if there is none.

    It is checked at a submit, not by the spec, so that jobs stored before stay readable.
    `bytes_of_secrets` has the sizes of secrets' values by their variables.
    """
    sizes = {**{name: _bytes_of(value) for name, value in env.items()}, **bytes_of_secrets}
    for name in env:
        if sizes[name] > MOST_VALUE_BYTES:
            return f"env.{name}", (
                f"has {sizes[name]:,} bytes, and one value may have {MOST_VALUE_BYTES:,}; put it into a file of workdir"
            )
    size = sum(_bytes_of(name) + 2 + sizes[name] for name in sizes)
    if size > MOST_ENV_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        return "env", (
            f"the environment has {size:,} bytes in {len(sizes):,} variables, and all together may have "
            f"{MOST_ENV_BYTES:,}, since no program could be started with many more; the largest is {largest}: put it into a file of workdir"
        )
    found = _REFERENCE.search(env.get("PATH", ""))
    if found is not None:
        return "env.PATH", (
            f"holds {found[0]}, and values are not expanded, so no program would be found; "
            'set it in run instead: PATH="/opt/tool/bin:$PATH" python train.py'
        )
    return None


def env_warnings(env: Mapping[str, str]) -> list[str]:
    """Return warnings about values that a shell or a template would expand, and that ranks get as they stand."""
    found = []
    for name, value in env.items():
        for pattern in REFERENCES:
            match = pattern.search(value)
            if match is not None:
                found.append(
                    f"env.{name} holds {match[0].strip(':')!r}: values are not expanded, ranks get it as it stands; "
                    f'write the whole value, or set it in run: {name}="…" python train.py'
                )
                break
    return found


def _bytes_of(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
