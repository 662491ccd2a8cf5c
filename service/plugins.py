"""Installed packages that add policies or providers of machines, found by their entry points.

`docs/extending.md` shows how to write one. A package that cannot be used stops the program at its start:
scheduling by another policy than the chosen one would spend money without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from service.domain.policies.registry import POLICIES, Policies, problem_of
from service.environment import SettingsError

PROTOCOL = 1
"""Version of the interfaces of `service.extending`. Only a change that breaks packages raises it."""


class PluginRefused(SettingsError):
    """Error: an installed package cannot be used. `code` is stable: `plugin_import`, `plugin_name`,
    `plugin_protocol` or `plugin_type`.
    """

    def __init__(self, code: str, point: EntryPoint, why: str, remedy: str) -> None:
        package = "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        super().__init__(
            f"{code}: the entry point {point.name} ({point.group}) of {package} cannot be used: {why}. {remedy}, "
            f"or uninstall {'it' if point.dist is None else point.dist.name}."
        )
        self.code = code


def installed_policies() -> Policies:
    """Return the built-in policies and those of installed packages. Raise PluginRefused."""
    return policies_of(entry_points(group="headway.policies"))


def policies_of(points: Iterable[EntryPoint]) -> Policies:
    """Return the built-in policies and those of these entry points. Raise PluginRefused."""
    found = {point.name: loaded(point, problem_of) for point in unique(points, POLICIES)}
    return Policies({**POLICIES, **found})


def unique(points: Iterable[EntryPoint], taken: Container[str]) -> list[EntryPoint]:
    """Return the entry points by name. Raise PluginRefused if a name is taken."""
    found: dict[str, EntryPoint] = {}
    for point in points:
        if point.name in taken or point.name in found:
            other = found.get(point.name)
            owner = other.dist.name if other is not None and other.dist is not None else "Headway"
            raise PluginRefused(
                "plugin_name", point, f"{owner} has one of this name", "Rename it in the package"
            )
        found[point.name] = point
    return [found[name] for name in sorted(found)]


def loaded(point: EntryPoint, problem: Callable[[object], str]) -> Any:
    """Return the class that an entry point names. Raise PluginRefused if `problem` finds one in it."""
    try:
        kind = point.load()
    except Exception as error:
        why = f"importing {point.value} failed: {type(error).__name__}: {error}"
        raise PluginRefused(
            "plugin_import", point, why, "Install what it needs, or a version that fits"
        ) from error
    why = problem(kind)
    if not why and kind.name != point.name:
        why = f"its `name` is {kind.name!r}"
    if why:
        raise PluginRefused("plugin_type", point, f"{point.value}: {why}", "Correct the class")
    if getattr(kind, "protocol", None) != PROTOCOL:
        why = (
            f"it has `protocol` {getattr(kind, 'protocol', None)}, and this version of Headway has {PROTOCOL}"
        )
        raise PluginRefused("plugin_protocol", point, why, "Install a version of it for this Headway")
    return kind
