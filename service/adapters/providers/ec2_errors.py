"""Classification of EC2's errors: unknown outcome, no capacity now, or refused for good."""

from __future__ import annotations

from typing import Any

from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable

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
_NOBODY_KNOWS = frozenset(
    """
    RequestLimitExceeded Throttling ThrottlingException ThrottledException TooManyRequestsException
    EC2ThrottledException Unavailable ServiceUnavailable InternalError InternalFailure InternalServerError
    RequestTimeout RequestTimeoutException
    """.split()  # noqa: SIM905 - read as prose
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
    if code in _NOBODY_KNOWS or status >= 500:
        return Unavailable(f"EC2 did not {what}: {code} ({text}); the service tries again.")
    if launching and code in _NO_CAPACITY:
        return NoCapacity(f"EC2 did not {what}: {_NO_CAPACITY[code]} ({code}).")
    if launching:
        return ProviderRefused(f"EC2 refused to {what}: {code}: {text}")
    return Unavailable(f"EC2 did not {what}: {code}: {text}")


def unanswered(error: Exception, what: str) -> Unavailable:
    """Return the error for a missing or unreadable answer, after which the outcome is unknown."""
    return Unavailable(f"EC2 did not {what}, or the outcome is unknown: {error}; the service tries again.")
