"""The service's one tree of errors. Each has a stable `code` and says what to do next.

HTTP statuses are chosen in `service/api/problems.py`; the rules do not know HTTP.
"""

from __future__ import annotations


class HeadwayServiceError(Exception):
    """The root. `code` is part of the API contract and never changes its meaning."""

    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidField(HeadwayServiceError):
    """A field of the request is wrong in a way that only the service can know."""

    code = "invalid_field"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class NotFound(HeadwayServiceError):
    """The thing named in the request does not exist."""

    code = "not_found"


class NameTaken(HeadwayServiceError):
    """A live job of the project, or a user, has this name already."""

    code = "name_taken"


class NodeNameTaken(HeadwayServiceError):
    """Another live agent has joined under this name."""

    code = "node_name_taken"


class IdempotencyConflict(HeadwayServiceError):
    """The key was used before, for a different request."""

    code = "idempotency_conflict"


class Changed(HeadwayServiceError):
    """Somebody else has changed it since the caller looked."""

    code = "changed"


class IllegalTransition(HeadwayServiceError):
    """The job's state does not allow this event."""

    code = "illegal_transition"


class NoCapacity(HeadwayServiceError):
    """A provider has no machine of the type there now. Temporary."""

    code = "no_capacity"


class ProviderRefused(HeadwayServiceError):
    """A provider will never launch what it was asked for, as it was asked for. Permanent."""

    code = "provider_refused"


class WrongToken(HeadwayServiceError):
    """The bearer token is missing or not valid for this request."""

    code = "wrong_token"


class Forbidden(HeadwayServiceError):
    """Whoever asks is known, and may not do this."""

    code = "forbidden"


class LastAdmin(HeadwayServiceError):
    """After this nobody could decide any more who may do what."""

    code = "last_admin"


class InUse(HeadwayServiceError):
    """It cannot go while something needs it."""

    code = "in_use"


class NoSecretsKey(HeadwayServiceError):
    """The service has no key to keep secrets with."""

    code = "no_secrets_key"


class SecretUnreadable(HeadwayServiceError):
    """A stored secret was sealed with a key that the service does not have, or was changed since."""

    code = "secret_unreadable"


class TooLarge(HeadwayServiceError):
    """The upload is over its limit."""

    code = "too_large"


class SimulationEnded(HeadwayServiceError):
    """A what-if simulation ended without an answer; the message says why."""

    code = "simulation_ended"


class Unavailable(HeadwayServiceError):
    """A store that the request needs does not answer; trying again later helps."""

    code = "unavailable"

    def __init__(self, message: str, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Superseded(HeadwayServiceError):
    """A leader wanted to write after another one had taken over. Its work is over; nothing was written."""

    code = "superseded"


class TooBusy(HeadwayServiceError):
    """The process has more work than it can do; coming back later helps."""

    code = "too_busy"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
