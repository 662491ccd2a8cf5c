"""Check that constraints.txt pins the dependencies in pyproject.toml.

Every line must be a plain `name==version`. The pin of every direct dependency must satisfy pyproject's bounds. All indirect
dependencies on this platform must be pinned too. Run from the root of the repository as `python tools/check_pins.py`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "headway"
UNPINNED = ("nvidia-", "cuda-", "triton")
"""Prefixes of packages without pins, because torch's CUDA builds pin them."""
COMES_WITH_VENV = frozenset({"pip", "setuptools"})

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.]*)")


def parse_pins(text: str) -> tuple[dict[str, str], list[str]]:
    """Return versions by canonical name, and a problem for every line that is not a plain pin or is a repetition."""
    pins: dict[str, str] = {}
    problems: list[str] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _PIN.fullmatch(line)
        if match is None:
            problems.append(f"constraints.txt:{number}: {line!r} is not a plain name==version")
            continue
        name = canonicalize_name(match["name"])
        if name in pins:
            problems.append(f"constraints.txt:{number}: {name} is pinned twice")
        pins[name] = match["version"]
    return pins, problems


def direct(pyproject: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yield the requirements in pyproject.toml, including those of extras."""
    project = pyproject["project"]
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for lines in extras for line in lines)]:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != PROJECT:
            yield requirement


def unsatisfied(requirements: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """Return a problem for each requirement without a pin, or with a pin outside its bounds."""
    problems = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name not in pins:
            problems.append(f"{name}: in pyproject.toml, but not in constraints.txt")
        elif not requirement.specifier.contains(pins[name], prereleases=True):
            problems.append(f"{name}: pinned at {pins[name]}, pyproject.toml wants {requirement.specifier}")
    return problems


def unpinned(roots: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """Return a problem for each package without a pin that `roots` need, directly or indirectly.

    The dependencies of a root that is not installed, such as that of an extra that `make setup` leaves out, are unknown.
    """
    problems: dict[str, str] = {}
    queue = [(requirement, PROJECT) for requirement in roots if _applies(requirement, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, parent = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen or name.startswith(UNPINNED) or name in COMES_WITH_VENV:
            continue
        seen.add(key)
        if name not in pins:
            problems[name] = f"{name}: needed by {parent}, but not in constraints.txt"
        try:
            children = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            if parent != PROJECT:
                problems[name] = f"{name}: needed by {parent}, but not installed; run make setup"
            continue
        queue += [(child, name) for child in children if _applies(child, frozenset(requirement.extras))]
    return [problems[name] for name in sorted(problems)]


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})


def main() -> int:
    """Print all problems, and return the exit code: 0 without problems, else 1."""
    pins, problems = parse_pins(Path("constraints.txt").read_text(encoding="utf-8"))
    needed = list(direct(tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))))
    problems += unsatisfied(needed, pins)
    problems += unpinned(needed, pins)
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
