"""Clients of EC2 and of its price list, and the meaning of EC2's errors: unknown outcome, no capacity now, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable
from service.settings import SettingsError

NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
SAME_TOKEN_OTHER_REQUEST = "IdempotentParameterMismatch"  # noqa: S105 - an error code

_NO_CAPACITY = {
    "InsufficientInstanceCapacity": "there are none in the zone now",
    "InsufficientHostCapacity": "there are none in the zone now",
    "InsufficientCapacityOnHost": "there are none in the zone now",
    "InsufficientFreeAddressesInSubnet": "the zone's subnet has no free address; make it larger",
    "MaxSpotInstanceCountExceeded": "the account's quota of spot machines is used up; ask for more in Service Quotas",
    "SpotMaxPriceTooLow": "the spot price is higher than what may be paid",
    "VcpuLimitExceeded": "the account's quota of vCPUs is used up; ask for more in Service Quotas",
    "InstanceLimitExceeded": "the account's quota of machines is used up; ask for more in Service Quotas",
    "Unsupported": "the zone does not have this type",
}
_UNKNOWN_OUTCOME = frozenset(
    """
    RequestLimitExceeded Throttling ThrottlingException ThrottledException TooManyRequestsException
    EC2ThrottledException Unavailable ServiceUnavailable InternalError InternalFailure InternalServerError
    RequestTimeout RequestTimeoutException
    """.split()  # noqa: SIM905 - read as prose
)

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


def code_of(error: Any) -> str:
    """Return the code of a botocore `ClientError`; empty if it has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


def answered(error: Any, what: str, *, launching: bool) -> HeadwayServiceError:
    """Return the service's error for an error that EC2 answered with.

    Only a launch can be refused. Listing and termination are always retried later.
    """
    code = code_of(error)
    text = str(error.response.get("Error", {}).get("Message", "")) or "without a message"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _UNKNOWN_OUTCOME or status >= 500:
        return Unavailable(f"EC2 did not {what}: {code} ({text}); the service tries again.")
    if launching and code in _NO_CAPACITY:
        return NoCapacity(f"EC2 did not {what}: {_NO_CAPACITY[code]} ({code}).")
    if launching:
        return ProviderRefused(f"EC2 refused to {what}: {code}: {text}")
    return Unavailable(f"EC2 did not {what}: {code}: {text}")


def unanswered(error: Exception, what: str) -> Unavailable:
    """Return the error for a missing or unreadable answer, after which the outcome is unknown."""
    return Unavailable(f"EC2 did not {what}, or the outcome is unknown: {error}; the service tries again.")
