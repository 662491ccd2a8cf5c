"""The service's settings, from the environment. Names are documented in `docs/reference/settings.md`, what they mean in `tools/variables.py`."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.contract.devices import parse_prices
from headway.exposing import Bind
from service.domain.silence import SilenceRule
from service.environment import SettingsError, number_of, path_of, switch_of, text_of
from service.http_settings import HttpSettings, read_http_settings

__all__ = ["PROVIDERS", "RentalSettings", "Settings", "SettingsError", "read_settings"]

SECRETS_KEY_BYTES = 32
PROVIDERS = ("ec2", "local", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalSettings:
    """Renting machines. Without providers, nothing is ever rented."""

    providers: tuple[str, ...] = ()
    public_url: str = ""
    """The service as rented machines reach it."""
    max_machines: int = 10
    max_usd_per_h: float | None = None
    """What all rented machines together may cost; None: budgets alone bound it."""
    idle_s: float = 120.0
    """A machine that is not worth its price is kept for so long."""
    join_s: float = 600.0
    """A machine whose agent has not joined after so long is given back."""
    every_s: float = 10.0
    local_offers: Path | None = None
    """The file of offers of the provider `local`."""
    local_machines: Path | None = None
    """The folder in which its machines live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """What secrets of projects are sealed with; with neither, the service keeps none."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    command: tuple[str, ...] = ()
    """A program that wraps keys; it takes the place of the first of `keys`, which then only open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a deployment chooses."""

    database_url: str
    redis_url: str
    storage_url: str
    api_token: str
    """Its bearer may everything; "" where only tokens in the database count."""
    join_token: str
    """What any agent may join with; empty: only with join tokens that operators make."""
    agent_redis_url: str
    """The Redis URL as agents reach it."""
    host: str
    port: int
    lease_s: float
    """An agent stops its ranks when no report got through for this long."""
    silence_s: float
    """A node is LOST when it was not heard of for this long, in a large cluster later (`silence`)."""
    max_bundle_bytes: int
    keep_days: int
    """Ended jobs and their history are kept this long."""
    usd_per_slot_h: Mapping[str, float] = field(default_factory=dict)
    """What an hour of one slot costs, by device kind. Kinds that are not named cost nothing."""
    redis_acl: bool = True
    """Whether every node has a user of Redis of its own."""
    storage_role: str = ""
    """The role from which ranks get keys for their checkpoints; empty: they get none."""
    storage_signed: bool = False
    """Whether the service signs the requests of ranks to the storage; else they use a role's keys, or what their hosts have."""
    metrics_listen: Bind | None = None
    """Where a scheduler that has no API beside it answers `/metrics`; None: nowhere."""
    share_half_life_s: float = 7 * 86_400.0
    """After so long, slots that a project has used count half for its share."""
    rental: RentalSettings = RentalSettings()
    http: HttpSettings = field(default_factory=HttpSettings)
    secrets: SecretSettings = SecretSettings()

    @property
    def silence(self) -> SilenceRule:
        """How long nodes may be silent."""
        return SilenceRule(self.silence_s, self.lease_s)


def read_settings(env: Mapping[str, str]) -> Settings:
    """The settings.

    Raises:
        SettingsError: one is missing or wrong.
    """
    lease_s = number_of(env, "HEADWAY_LEASE_S", 300.0, 1.0, 86_400.0)
    silence_s = number_of(env, "HEADWAY_SILENCE_S", 15.0, 1.0, lease_s)
    redis_url = text_of(env, "HEADWAY_REDIS_URL")
    http = read_http_settings(env)
    return Settings(
        database_url=text_of(env, "HEADWAY_DATABASE_URL"),
        redis_url=redis_url,
        storage_url=text_of(env, "HEADWAY_STORAGE_URL").rstrip("/"),
        api_token=env.get("HEADWAY_API_TOKEN", "").strip(),
        join_token=env.get("HEADWAY_JOIN_TOKEN", "").strip(),
        agent_redis_url=env.get("HEADWAY_AGENT_REDIS_URL") or redis_url,
        host=env.get("HEADWAY_HOST", "127.0.0.1"),
        port=int(number_of(env, "HEADWAY_PORT", 8123, 1, 65_535)),
        lease_s=lease_s,
        silence_s=silence_s,
        max_bundle_bytes=int(number_of(env, "HEADWAY_MAX_BUNDLE_MIB", 100, 0.001, 100_000) * 2**20),
        keep_days=int(number_of(env, "HEADWAY_KEEP_DAYS", 90, 1, 36_500)),
        usd_per_slot_h=_prices(env, "HEADWAY_PRICES"),
        redis_acl=switch_of(env, "HEADWAY_REDIS_ACL", default=True),
        storage_role=env.get("HEADWAY_STORAGE_ROLE", "").strip(),
        storage_signed=switch_of(env, "HEADWAY_STORAGE_SIGNED", default=False),
        metrics_listen=_metrics_listen(env),
        share_half_life_s=number_of(env, "HEADWAY_SHARE_HALF_LIFE_D", 7, 0.04, 366) * 86_400.0,
        rental=_rental(env, http.public_url),
        http=http,
        secrets=_secrets(env),
    )


def _metrics_listen(env: Mapping[str, str]) -> Bind | None:
    text = env.get("HEADWAY_METRICS_LISTEN", "").strip()
    try:
        return Bind.parse(text) if text else None
    except ValueError as error:
        raise SettingsError(f"HEADWAY_METRICS_LISTEN: {error}.") from None


def _secrets(env: Mapping[str, str]) -> SecretSettings:
    keys = tuple(_key(one.strip()) for one in env.get("HEADWAY_SECRETS_KEY", "").split(",") if one.strip())
    return SecretSettings(keys=keys, command=tuple(shlex.split(env.get("HEADWAY_SECRETS_COMMAND", ""))))


def _key(text: str) -> bytes:
    try:
        hexadecimal = len(text) == 2 * SECRETS_KEY_BYTES
        key = bytes.fromhex(text) if hexadecimal else base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != SECRETS_KEY_BYTES:
        raise SettingsError(
            f"HEADWAY_SECRETS_KEY: each key must be {SECRETS_KEY_BYTES} random bytes in base64 or hexadecimal digits; make one with: "
            f"openssl rand -base64 {SECRETS_KEY_BYTES}"
        )
    return key


def _rental(env: Mapping[str, str], public_url: str) -> RentalSettings:
    providers = tuple(name.strip() for name in env.get("HEADWAY_PROVIDERS", "").split(",") if name.strip())
    for name in providers:
        if name not in PROVIDERS or providers.count(name) > 1:
            raise SettingsError(
                f"HEADWAY_PROVIDERS: {name!r} is none of {', '.join(PROVIDERS)}, or named twice."
            )
    if set(providers) - {"static"}:
        text_of(env, "HEADWAY_JOIN_TOKEN")  # the tokens of machines are made from it
    if "local" in providers:
        text_of(env, "HEADWAY_LOCAL_OFFERS")
        text_of(env, "HEADWAY_LOCAL_MACHINES")
    cap = env.get("HEADWAY_MAX_USD_PER_H", "").strip()
    return RentalSettings(
        providers=providers,
        public_url=public_url,
        max_machines=int(number_of(env, "HEADWAY_MAX_MACHINES", 10, 0, 10_000)),
        max_usd_per_h=number_of(env, "HEADWAY_MAX_USD_PER_H", 0.0, 0.0, 1e6) if cap else None,
        idle_s=number_of(env, "HEADWAY_IDLE_S", 120.0, 0.0, 86_400.0),
        join_s=number_of(env, "HEADWAY_JOIN_TIMEOUT_S", 600.0, 1.0, 86_400.0),
        every_s=number_of(env, "HEADWAY_RENT_EVERY_S", 10.0, 0.1, 3600.0),
        local_offers=path_of(env, "HEADWAY_LOCAL_OFFERS"),
        local_machines=path_of(env, "HEADWAY_LOCAL_MACHINES"),
    )


def _prices(env: Mapping[str, str], name: str) -> dict[str, float]:
    try:
        return parse_prices(env.get(name, ""))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}.") from None
