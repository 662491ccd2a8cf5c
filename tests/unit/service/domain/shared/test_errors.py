"""Error codes are part of the API contract: each class has one of its own, and none ever changes."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.contract.views.meanings import ERRORS
from service.domain.shared import errors
from service.domain.shared.errors import (
    BundleRefused,
    HeadwayServiceError,
    InvalidField,
    NotFound,
    TooBusy,
    Unavailable,
)

CODES = {
    "AgentTooOld": "agent_too_old",
    "BundleRefused": "bundle_refused",
    "ChangedMeanwhile": "changed",
    "DeadlineRefused": "deadline_refused",
    "Forbidden": "forbidden",
    "HeadwayServiceError": "internal",
    "IdempotencyConflict": "idempotency_conflict",
    "IllegalTransition": "illegal_transition",
    "InUse": "in_use",
    "InvalidField": "invalid_field",
    "LastAdmin": "last_admin",
    "NameTaken": "name_taken",
    "NoCapacity": "no_capacity",
    "NoSecretsKey": "no_secrets_key",
    "NodeNameTaken": "node_name_taken",
    "NotFound": "not_found",
    "ProviderRefused": "provider_refused",
    "RentalRefused": "rental_refused",
    "SecretUnreadable": "secret_unreadable",
    "SimulationEnded": "simulation_ended",
    "Superseded": "superseded",
    "TooBusy": "too_busy",
    "TooLarge": "too_large",
    "TooManyCommands": "too_many_commands",
    "Unavailable": "unavailable",
    "WrongToken": "wrong_token",
}


def classes() -> dict[str, type[HeadwayServiceError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, HeadwayServiceError)
    }


def test_every_error_has_its_code() -> None:
    assert {name: one.code for name, one in classes().items()} == CODES


def test_no_two_errors_share_a_code() -> None:
    assert max(Counter(CODES.values()).values()) == 1


def test_users_can_look_up_every_code() -> None:
    assert set(CODES.values()) <= set(ERRORS)


@pytest.mark.parametrize("name", CODES)
def test_codes_are_words_of_the_wire(name: str) -> None:
    assert CODES[name].replace("_", "").isalpha()
    assert CODES[name].islower()


def test_an_error_carries_its_message() -> None:
    error = NotFound("no job train")
    assert (error.message, str(error)) == ("no job train", "no job train")


def test_a_wrong_field_is_named() -> None:
    error = InvalidField("elastic.max", "is below min")
    assert (error.field, error.message) == ("elastic.max", "is below min")
    refused = BundleRefused("is no archive")
    assert (refused.field, refused.code) == ("bundle", "bundle_refused")
    assert isinstance(refused, InvalidField)


@pytest.mark.parametrize(
    ("error", "retry_after_s"),
    [(Unavailable("x"), 2.0), (Unavailable("x", 7.5), 7.5), (TooBusy("x", 0.5), 0.5)],
)
def test_a_temporary_error_names_the_time_to_wait(error: Unavailable | TooBusy, retry_after_s: float) -> None:
    assert error.retry_after_s == retry_after_s
