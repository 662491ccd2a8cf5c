"""The service's settings, read from the environment.

`docs/reference/settings.md` lists their names. `tools/variables.py` describes their meanings.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.contract.values.devices import parse_prices
from headway.exposing import Bind
from service.domain.cluster.contention_rules import USUAL, ContentionRules
from service.domain.nodes.silence import SilenceRule
from service.environment import SettingsError, number_of, switch_of, text_of
from service.http_settings import HttpSettings, read_http_settings

__all__ = ["RentalSettings", "Settings", "SettingsError", "read_settings"]

SECRETS_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalSettings:
    """Settings of renting machines. Without providers, nothing is rented."""

    providers: tuple[str, ...] = ()
    public_url: str = ""
    """URL of the service for rented machines."""
    max_machines: int = 10
    max_usd_per_h: float | None = None
    """Limit on the dollars per hour of all rented machines together; None if only budgets limit them."""
    idle_s: float = 120.0
    """Seconds before a machine that is no longer worth its price is given back."""
    join_s: float = 600.0
    """Seconds before a machine whose agent has not joined is given back."""
    every_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """Encryption of the secrets of projects. Without keys and a command, the service stores no secrets."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    command: tuple[str, ...] = ()
    """Program that wraps keys. It replaces the first of `keys`, and the keys then only decrypt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a deployment."""

    database_url: str
    redis_url: str
    storage_url: str
    api_token: str
    """Bearer token with all rights; "" if only tokens in the database are valid."""
    join_token: str
    """Join token for any agent; empty if agents need join tokens that operators create."""
    agent_redis_url: str
    """Redis URL for agents."""
    host: str
    port: int
    lease_s: float
    """Seconds without a successful report after which an agent stops its ranks."""
    silence_s: float
    """Seconds without contact after which a node is LOST; longer in a large cluster (`silence`)."""
    max_bundle_bytes: int
    keep_days: int
    """Days for which ended jobs and their history are kept."""
    usd_per_slot_h: Mapping[str, float] = field(default_factory=dict)
    """Price of one slot for an hour, by device kind. Kinds that are missing cost nothing."""
    redis_acl: bool = True
    """True if every node has a Redis user of its own."""
    storage_role: str = ""
    """Role whose temporary keys ranks get for their checkpoints; empty for none."""
    storage_signed: bool = False
    """True if the service signs the storage requests of ranks. Otherwise ranks use keys of a role, or those
    of their hosts."""
    metrics_listen: Bind | None = None
    """Address at which a scheduler without an API serves `/metrics`; None for none."""
    share_half_life_s: float = 7 * 86_400.0
    """Half-life in seconds of a project's past usage in its share."""
    contention: ContentionRules = USUAL
    """Guarantees for jobs that compete for slots."""
    rental: RentalSettings = RentalSettings()
    http: HttpSettings = field(default_factory=HttpSettings)
    secrets: SecretSettings = SecretSettings()

    @property
    def silence(self) -> SilenceRule:
        """The rule for silent nodes."""
        return SilenceRule(self.silence_s, self.lease_s)


def read_settings(env: Mapping[str, str]) -> Settings:
    """Return the settings of an environment.

    Raises:
        SettingsError: a setting is missing or wrong.
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
        contention=ContentionRules(
            min_run_s=number_of(env, "HEADWAY_MIN_RUN_S", 60.0, 0.0, 86_400.0),
            max_wait_s=number_of(env, "HEADWAY_MAX_WAIT_S", 1800.0, 1.0, 30 * 86_400.0),
        ),
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
        if providers.count(name) > 1:
            raise SettingsError(f"HEADWAY_PROVIDERS names {name!r} twice; name it once.")
    if set(providers) - {"static"}:
        text_of(env, "HEADWAY_JOIN_TOKEN")  # the tokens of machines are derived from it
    cap = env.get("HEADWAY_MAX_USD_PER_H", "").strip()
    return RentalSettings(
        providers=providers,
        public_url=public_url,
        max_machines=int(number_of(env, "HEADWAY_MAX_MACHINES", 10, 0, 10_000)),
        max_usd_per_h=number_of(env, "HEADWAY_MAX_USD_PER_H", 0.0, 0.0, 1e6) if cap else None,
        idle_s=number_of(env, "HEADWAY_IDLE_S", 120.0, 0.0, 86_400.0),
        join_s=number_of(env, "HEADWAY_JOIN_TIMEOUT_S", 600.0, 1.0, 86_400.0),
        every_s=number_of(env, "HEADWAY_RENT_EVERY_S", 10.0, 0.1, 3600.0),
    )


def _prices(env: Mapping[str, str], name: str) -> dict[str, float]:
    try:
        return parse_prices(env.get(name, ""))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}.") from None
