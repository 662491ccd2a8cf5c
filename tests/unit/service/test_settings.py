"""Settings from the environment."""

from __future__ import annotations

import pytest

from service.settings import SettingsError, read_settings

REQUIRED = {
    "HEADWAY_DATABASE_URL": "postgresql://h/d",
    "HEADWAY_REDIS_URL": "redis://h",
    "HEADWAY_STORAGE_URL": "file:///data/",
}


def test_defaults() -> None:
    settings = read_settings(REQUIRED)
    assert (settings.host, settings.port, settings.keep_days) == ("127.0.0.1", 8123, 90)
    assert settings.usd_per_slot_h == {}
    assert settings.api_token == "", "tokens of users and robots are enough"
    assert (settings.lease_s, settings.silence_s) == (300.0, 15.0)
    assert settings.max_bundle_bytes == 100 * 2**20
    assert settings.agent_redis_url == "redis://h"
    assert settings.storage_url == "file:///data"


def test_everything_can_be_set() -> None:
    settings = read_settings(
        {
            **REQUIRED,
            "HEADWAY_AGENT_REDIS_URL": "redis://outside",
            "HEADWAY_HOST": "0.0.0.0",
            "HEADWAY_PORT": "80",
            "HEADWAY_LEASE_S": "60",
            "HEADWAY_SILENCE_S": " 5.5 ",
            "HEADWAY_MAX_BUNDLE_MIB": "0.5",
            "HEADWAY_KEEP_DAYS": "7",
            "HEADWAY_PRICES": " cpu = 0.05, a100=2.2,",
        }
    )
    assert (settings.agent_redis_url, settings.host, settings.port) == ("redis://outside", "0.0.0.0", 80)
    assert (settings.lease_s, settings.silence_s) == (60.0, 5.5)
    assert (settings.max_bundle_bytes, settings.keep_days) == (2**19, 7)
    assert settings.usd_per_slot_h == {"cpu": 0.05, "a100": 2.2}


def test_agents_need_no_permanent_join_token_but_machines_do() -> None:
    assert read_settings(REQUIRED).join_token == ""
    with pytest.raises(SettingsError, match="HEADWAY_JOIN_TOKEN is not set"):
        read_settings({**REQUIRED, "HEADWAY_PROVIDERS": "ec2"})
    rents = {**REQUIRED, "HEADWAY_PROVIDERS": "ec2", "HEADWAY_JOIN_TOKEN": "j"}
    assert read_settings(rents).join_token == "j"


@pytest.mark.parametrize(("value", "on"), [("", True), ("on", True), (" OFF ", False)])
def test_nodes_have_users_of_redis_unless_that_is_switched_off(value: str, on: bool) -> None:
    assert read_settings({**REQUIRED, "HEADWAY_REDIS_ACL": value}).redis_acl is on


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_setting_is_named(name: str, value: str | None) -> None:
    env = {key: text for key, text in {**REQUIRED, name: value}.items() if text is not None}
    with pytest.raises(SettingsError, match=f"{name} is not set; see docs/reference/settings.md"):
        read_settings(env)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADWAY_REDIS_ACL", "yes"),
        ("HEADWAY_PORT", "http"),
        ("HEADWAY_PORT", "-1"),
        ("HEADWAY_PORT", "65536"),
        ("HEADWAY_PORT", "nan"),
        ("HEADWAY_LEASE_S", "soon"),
        ("HEADWAY_LEASE_S", "inf"),
        ("HEADWAY_LEASE_S", "nan"),
        ("HEADWAY_SILENCE_S", "0.5"),
        ("HEADWAY_SILENCE_S", "301"),
        ("HEADWAY_SILENCE_S", "nan"),
        ("HEADWAY_MAX_BUNDLE_MIB", "0"),
        ("HEADWAY_MAX_BUNDLE_MIB", "-3"),
        ("HEADWAY_MAX_BUNDLE_MIB", "inf"),
        ("HEADWAY_KEEP_DAYS", "0"),
        ("HEADWAY_KEEP_DAYS", "-1"),
        ("HEADWAY_PRICES", "a100"),
        ("HEADWAY_PRICES", "a100="),
        ("HEADWAY_PRICES", "a100=cheap"),
        ("HEADWAY_PRICES", "a100=-1"),
        ("HEADWAY_PRICES", "a100=nan"),
        ("HEADWAY_PRICES", "a100=inf"),
        ("HEADWAY_PRICES", "a100=1,a100=2"),
        ("HEADWAY_PRICES", "A 100=1"),
        ("HEADWAY_PROVIDERS", "ec2,ec2"),
        ("HEADWAY_MAX_MACHINES", "-1"),
        ("HEADWAY_MAX_USD_PER_H", "-0.1"),
        ("HEADWAY_MAX_USD_PER_H", "nan"),
        ("HEADWAY_IDLE_S", "soon"),
        ("HEADWAY_JOIN_TIMEOUT_S", "0"),
        ("HEADWAY_RENT_EVERY_S", "0"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_settings({**REQUIRED, name: value})


def test_nothing_is_rented_unless_somebody_says_where() -> None:
    rental = read_settings(REQUIRED).rental
    assert (rental.providers, rental.max_machines, rental.max_usd_per_h) == ((), 10, None)
    assert rental.public_url == "http://127.0.0.1:8123"


def test_renting_can_be_set() -> None:
    rental = read_settings(
        {
            **REQUIRED,
            "HEADWAY_JOIN_TOKEN": "j",
            "HEADWAY_PROVIDERS": " local, static ",
            "HEADWAY_PUBLIC_URL": "https://headway.example/",
            "HEADWAY_MAX_MACHINES": "3",
            "HEADWAY_MAX_USD_PER_H": "0",
            "HEADWAY_IDLE_S": "0",
            "HEADWAY_JOIN_TIMEOUT_S": "60",
            "HEADWAY_RENT_EVERY_S": "0.5",
        }
    ).rental
    assert rental.providers == ("local", "static")
    assert (rental.public_url, rental.max_machines) == ("https://headway.example", 3)
    assert (rental.max_usd_per_h, rental.idle_s, rental.join_s, rental.every_s) == (0.0, 0.0, 60.0, 0.5)
