"""Fail when constraints.txt does not pin what pyproject.toml needs.

Three questions: is every line a plain `name==version`; does the pin of every direct dependency satisfy
pyproject's bounds; is everything that those dependencies need in turn, on this platform, pinned too.
Run from the root of the repository as `python tools/check_pins.py`.
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
"""Prefixes that stay free: torch's CUDA builds pin them themselves."""
COMES_WITH_VENV = frozenset({"pip", "setuptools"})

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.]*)")


def parse_pins(text: str) -> tuple[dict[str, str], list[str]]:
    """Versions by canonical name, and a problem for every line that is no plain pin or a repetition."""
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
    """The requirements that pyproject.toml lists: the core's and every extra's."""
    project = pyproject["project"]
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for lines in extras for line in lines)]:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != PROJECT:
            yield requirement


def unsatisfied(requirements: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """A problem for each requirement without a pin, or with one outside its bounds."""
    problems = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name not in pins:
            problems.append(f"{name}: in pyproject.toml and not in constraints.txt")
        elif not requirement.specifier.contains(pins[name], prereleases=True):
            problems.append(f"{name}: pinned at {pins[name]}, pyproject.toml wants {requirement.specifier}")
    return problems


def unpinned(roots: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """A problem for each installed package that `roots` need, directly or not, and that has no pin.

    Of a root that is not installed, as those of an extra that `make setup` leaves out, nothing more can be said.
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
            problems[name] = f"{name}: needed by {parent} and not in constraints.txt"
        try:
            children = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            if parent != PROJECT:
                problems[name] = f"{name}: needed by {parent} and not installed; run make setup"
            continue
        queue += [(child, name) for child in children if _applies(child, frozenset(requirement.extras))]
    return [problems[name] for name in sorted(problems)]


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})


def main() -> int:
    """The command: 0 when the pins cover pyproject.toml, else 1."""
    pins, problems = parse_pins(Path("constraints.txt").read_text(encoding="utf-8"))
    needed = list(direct(tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))))
    problems += unsatisfied(needed, pins)
    problems += unpinned(needed, pins)
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
