"""The providers of machines by name: built-in ones, and those of installed packages.

Each module of `providers` without an underscore in its name defines one provider, named after the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules

from service.adapters import providers
from service.environment import SettingsError
from service.plugins import loaded, unique
from service.usecases.ports.rental import Provider

_METHODS = ("from_env", "offers", "launch", "terminate", "list")


def installed_providers(
    names: Sequence[str], env: Mapping[str, str], now: Callable[[], datetime]
) -> list[Provider]:
    """Return the providers of these names. Raises: as `providers_of`."""
    return providers_of(names, env, now, entry_points(group="headway.providers"))


def providers_of(
    names: Sequence[str], env: Mapping[str, str], now: Callable[[], datetime], points: Iterable[EntryPoint]
) -> list[Provider]:
    """Return the providers of these names, built in or from these entry points. No other one is imported.

    Raises:
        SettingsError: there is no such provider, or its own settings are missing or wrong.
        PluginRefused: the package that has it cannot be used.
    """
    built_in = {found.name for found in iter_modules(providers.__path__) if "_" not in found.name}
    installed = {point.name: point for point in unique(points, built_in)}
    found = []
    for name in names:
        if name not in built_in | installed.keys():
            known = ", ".join(sorted(built_in | installed.keys()))
            raise SettingsError(
                f"HEADWAY_PROVIDERS: no provider is called {name!r}; there are {known}. Correct the name, or "
                "install the package that has it."
            )
        kind = _built_in(name) if name in built_in else loaded(installed[name], problem_of)
        found.append(kind.from_env(env, now))
    return found


def problem_of(kind: object) -> str:
    """Return the reason why an object is not a provider class; empty if it is one."""
    if not isinstance(kind, type) or not isinstance(getattr(kind, "name", None), str):
        return "it is not a class with a `name`"
    missing = [method for method in _METHODS if not callable(getattr(kind, method, None))]
    return f"it has no {', '.join(missing)}" if missing else ""


def _built_in(name: str) -> type[Provider]:
    try:
        module = import_module(f"{providers.__name__}.{name}")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"HEADWAY_PROVIDERS names {name}, which needs {error.name}: pip install 'headway[{name}]'"
        ) from error
    (kind,) = (one for one in vars(module).values() if getattr(one, "name", None) == name)
    return kind  # type: ignore[no-any-return]  # a module's contents have no type
