"""Error classes of the service. Each has a stable `code`; its message says what to do next.

`service/api/http/problems.py` maps the classes to HTTP statuses; the domain does not depend on HTTP.
"""

from __future__ import annotations


class HeadwayServiceError(Exception):
    """Base class of all errors. `code` is part of the API contract and never changes its meaning."""

    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidField(HeadwayServiceError):
    """Error for a field of the request that is wrong in a way that only the service can know."""

    code = "invalid_field"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BundleRefused(InvalidField):
    """Error for an upload that is not an archive, or that has paths outside the folder it is unpacked
    into.
    """

    code = "bundle_refused"

    def __init__(self, message: str) -> None:
        super().__init__("bundle", message)


class NotFound(HeadwayServiceError):
    """Error for a request that names something that does not exist."""

    code = "not_found"


class NameTaken(HeadwayServiceError):
    """Error for a name that a live job of the project or a user already has."""

    code = "name_taken"


class NodeNameTaken(HeadwayServiceError):
    """Error for a node name under which another live agent has joined."""

    code = "node_name_taken"


class DeadlineRefused(HeadwayServiceError):
    """Error for a job that is to be refused (`goal.admit: reject`), because its deadline is not feasible."""

    code = "deadline_refused"


class IdempotencyConflict(HeadwayServiceError):
    """Error for an idempotency key that was used before for a different request."""

    code = "idempotency_conflict"


class ChangedMeanwhile(HeadwayServiceError):
    """Error for a change of something that has changed since the caller read it."""

    code = "changed"


class IllegalTransition(HeadwayServiceError):
    """Error for an event that the job's state does not allow."""

    code = "illegal_transition"


class TooManyCommands(HeadwayServiceError):
    """Error for a command beside a rank of a job that has as many as it may have."""

    code = "too_many_commands"


class AgentTooOld(HeadwayServiceError):
    """Error for a request that the agent of a node does not know, because its version is older."""

    code = "agent_too_old"


class NoCapacity(HeadwayServiceError):
    """Error of a provider that has no machine of the type in that place now. It is temporary."""

    code = "no_capacity"


class ProviderRefused(HeadwayServiceError):
    """Error of a provider that will never accept this launch request. It is permanent."""

    code = "provider_refused"


class RentalRefused(HeadwayServiceError):
    """Error for machines that a user wants to lease but that a limit, a budget or a price forbids."""

    code = "rental_refused"


class WrongToken(HeadwayServiceError):
    """Error for a bearer token that is missing or not valid for this request."""

    code = "wrong_token"


class Forbidden(HeadwayServiceError):
    """Error for an authenticated principal that lacks the permission for the request."""

    code = "forbidden"


class LastAdmin(HeadwayServiceError):
    """Error for a request that would leave the cluster without an admin."""

    code = "last_admin"


class InUse(HeadwayServiceError):
    """Error for the removal of something that is still in use."""

    code = "in_use"


class NoSecretsKey(HeadwayServiceError):
    """Error for a request that needs secrets while the service has no key to encrypt them."""

    code = "no_secrets_key"


class SecretUnreadable(HeadwayServiceError):
    """Error for a stored secret that was encrypted with a key the service lacks, or that was altered."""

    code = "secret_unreadable"


class TooLarge(HeadwayServiceError):
    """Error for an upload over its size limit."""

    code = "too_large"


class SimulationEnded(HeadwayServiceError):
    """Error for a what-if simulation that ended without an answer; the message gives the reason."""

    code = "simulation_ended"


class Unavailable(HeadwayServiceError):
    """Error for a store that does not answer; the request may succeed later."""

    code = "unavailable"

    def __init__(self, message: str, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Superseded(HeadwayServiceError):
    """Error for a write of a leader after another leader has taken over. The write has no effect."""

    code = "superseded"


class TooBusy(HeadwayServiceError):
    """Error for a process that is overloaded; the request may succeed later."""

    code = "too_busy"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
