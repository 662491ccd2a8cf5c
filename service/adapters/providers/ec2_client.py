"""Clients of EC2 and of its price list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from service.settings import SettingsError

_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_ATTEMPTS = 2
"""Attempts of one call. The renter retries by itself, so a lasting fault is reported soon."""
_PRICING_REGION = "us-east-1"
"""Region of the price list, which has the prices of all regions."""


@dataclass(frozen=True, slots=True)
class Ec2Clients:
    """Thread-safe boto3 clients."""

    ec2: Any
    pricing: Any


def connect(region: str, *, endpoint_url: str | None = None) -> Ec2Clients:
    """Return clients with the credentials that boto3 finds (environment, profile, role).

    Args:
        region: such as `us-east-1`.
        endpoint_url: a server that answers like both services; None for AWS itself.

    Raises:
        SettingsError: there are no credentials.
    """
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        ignore_configured_endpoint_urls=True,  # AWS_ENDPOINT_URL belongs to the object storage
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    session = boto3.session.Session(region_name=region)
    if session.get_credentials() is None:
        raise SettingsError(
            "HEADWAY_PROVIDERS names ec2, and there are no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or give the host a role; see deploy/ec2/README.md."
        )
    return Ec2Clients(
        ec2=session.client("ec2", config=config, endpoint_url=endpoint_url),
        pricing=session.client(
            "pricing", region_name=_PRICING_REGION, config=config, endpoint_url=endpoint_url
        ),
    )
