"""Settings of the provider `shelf`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.extending import number_of, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSettings:
    """Hosts that wait for orders in a shared folder."""

    folder: Path
    hosts: int
    usd_per_h: float


def read_settings(env: Mapping[str, str]) -> ShelfSettings:
    """Return the settings of an environment. Raise SettingsError."""
    return ShelfSettings(
        folder=Path(text_of(env, "SHELF_FOLDER")),
        hosts=int(number_of(env, "SHELF_HOSTS", 1, 1, 1000)),
        usd_per_h=number_of(env, "SHELF_USD_PER_H", 0.1, 0.0, 1000.0),
    )
