"""The service's settings, from the environment. Names are documented in `docs/operations.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.contract.devices import parse_prices


class SettingsError(Exception):
    """A setting is missing or wrong; the message says which and what to set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a deployment chooses."""

    database_url: str
    redis_url: str
    storage_url: str
    api_token: str
    join_token: str
    agent_redis_url: str
    """The Redis URL as agents reach it."""
    host: str
    port: int
    lease_s: float
    """An agent stops its ranks when no report got through for this long."""
    silence_s: float
    """A node is LOST when it was not heard of for this long."""
    max_bundle_bytes: int
    keep_days: int
    """Ended jobs and their history are kept this long."""
    usd_per_slot_h: Mapping[str, float] = field(default_factory=dict)
    """What an hour of one slot costs, by device kind. Kinds that are not named cost nothing."""


def read_settings(env: Mapping[str, str]) -> Settings:
    """The settings.

    Raises:
        SettingsError: one is missing or wrong.
    """
    lease_s = _number(env, "HEADWAY_LEASE_S", 300.0, 1.0, 86_400.0)
    silence_s = _number(env, "HEADWAY_SILENCE_S", 15.0, 1.0, lease_s)
    redis_url = _text(env, "HEADWAY_REDIS_URL")
    return Settings(
        database_url=_text(env, "HEADWAY_DATABASE_URL"),
        redis_url=redis_url,
        storage_url=_text(env, "HEADWAY_STORAGE_URL").rstrip("/"),
        api_token=_text(env, "HEADWAY_API_TOKEN"),
        join_token=_text(env, "HEADWAY_JOIN_TOKEN"),
        agent_redis_url=env.get("HEADWAY_AGENT_REDIS_URL") or redis_url,
        host=env.get("HEADWAY_HOST", "127.0.0.1"),
        port=int(_number(env, "HEADWAY_PORT", 8123, 1, 65_535)),
        lease_s=lease_s,
        silence_s=silence_s,
        max_bundle_bytes=int(_number(env, "HEADWAY_MAX_BUNDLE_MIB", 100, 0.001, 100_000) * 2**20),
        keep_days=int(_number(env, "HEADWAY_KEEP_DAYS", 90, 1, 36_500)),
        usd_per_slot_h=_prices(env, "HEADWAY_PRICES"),
    )


def _prices(env: Mapping[str, str], name: str) -> dict[str, float]:
    try:
        return parse_prices(env.get(name, ""))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}.") from None


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; see docs/operations.md, or use `headway up`.")
    return value


def _number(env: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise SettingsError(f"{name} must be a number, not {text!r}.") from None
    if not low <= value <= high:
        raise SettingsError(f"{name} must lie between {low:g} and {high:g}, not {value:g}.")
    return value
