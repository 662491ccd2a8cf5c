"""Settings of EC2 machines, from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from types import MappingProxyType

from service.environment import SettingsError, cluster_of

_TYPE = re.compile(r"[a-z0-9*][a-z0-9*-]*\.[a-z0-9*-]+")
_USER_DATA = Path(__file__).with_name("ec2_user_data.sh")
_MOST_USER_DATA_BYTES = 12_000
"""Limit of the start script. EC2 takes 16 KiB, and the values that are filled in need some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Settings:
    """Settings of the use of one region of EC2 by one cluster."""

    region: str
    cluster: str
    """Value of the tag that marks the machines of this cluster."""
    image: str
    """AMI with Headway's agent."""
    instance_types: tuple[str, ...]
    """Types that may be rented; `*` matches anything, as in `g5.*`."""
    subnets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Subnet by zone; only these zones are used. If empty, every zone with its default subnet."""
    security_groups: tuple[str, ...] = ()
    """Security groups of each machine. If empty, the default group of its network."""
    instance_profile: str = ""
    """Name of the instance profile of machines; empty for none."""
    user_data: Template = field(default_factory=lambda: Template(_USER_DATA.read_text(encoding="utf-8")))
    """Script that a machine runs when it starts."""


def read_ec2_settings(env: Mapping[str, str]) -> Ec2Settings:
    """Return the settings of the environment.

    Raises:
        SettingsError: a setting is missing or wrong.
    """
    types = _list(env, "HEADWAY_EC2_INSTANCE_TYPES")
    for name in types:
        if not _TYPE.fullmatch(name):
            raise SettingsError(
                f"HEADWAY_EC2_INSTANCE_TYPES: {name!r} is not an instance type, such as g5.xlarge or g5.*"
            )
    return Ec2Settings(
        region=_text(env, "HEADWAY_EC2_REGION", "us-east-1"),
        cluster=cluster_of(env),
        image=_text(env, "HEADWAY_EC2_IMAGE", "ami-0123456789abcdef0"),
        instance_types=types,
        subnets=_subnets(env),
        security_groups=_optional_list(env, "HEADWAY_EC2_SECURITY_GROUPS"),
        instance_profile=env.get("HEADWAY_EC2_INSTANCE_PROFILE", "").strip(),
        user_data=_user_data(env),
    )


def _text(env: Mapping[str, str], name: str, example: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set, and HEADWAY_PROVIDERS names ec2; set it like {example}.")
    return value


def _list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    _text(env, name, "g4dn.xlarge,g5.*")
    return _optional_list(env, name)


def _optional_list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _subnets(env: Mapping[str, str]) -> Mapping[str, str]:
    subnets: dict[str, str] = {}
    for part in _optional_list(env, "HEADWAY_EC2_SUBNETS"):
        zone, _, subnet = (piece.strip() for piece in part.partition("="))
        if not zone or not subnet or zone in subnets:
            raise SettingsError(
                f"HEADWAY_EC2_SUBNETS: {part!r} is not of the form ZONE=SUBNET, one for each zone, "
                "such as us-east-1a=subnet-0123456789abcdef0."
            )
        subnets[zone] = subnet
    return MappingProxyType(subnets)


def _user_data(env: Mapping[str, str]) -> Template:
    path = Path(env.get("HEADWAY_EC2_USER_DATA", "").strip() or _USER_DATA)
    try:
        template = Template(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"HEADWAY_EC2_USER_DATA: {path} cannot be read: {error.strerror}.") from error
    if not template.is_valid() or not {"url", "token"} <= set(template.get_identifiers()):
        raise SettingsError(
            f"HEADWAY_EC2_USER_DATA: {path} must have ${{url}} and ${{token}} in it, and may have ${{node}}, "
            "${slots} and ${device_kind}; a plain dollar is written $$."
        )
    if not set(template.get_identifiers()) <= {"url", "token", "node", "slots", "device_kind"}:
        raise SettingsError(
            f"HEADWAY_EC2_USER_DATA: {path} has an unknown placeholder; use only url, token, node, slots and device_kind."
        )
    if len(template.template.encode()) > _MOST_USER_DATA_BYTES:
        raise SettingsError(f"HEADWAY_EC2_USER_DATA: {path} is larger than {_MOST_USER_DATA_BYTES:,} bytes.")
    return template
