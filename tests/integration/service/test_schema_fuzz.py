"""Requests that Schemathesis makes from the API's description, sent with each role: no error of the service, and every answer
is one that the description has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headway.contract.views.identity import Role
from service.main import Service
from tests.integration.service.conftest import TOKEN, make_settings
from tests.integration.service.serving import serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 2
"""Requests for each operation and token: making them takes most of the time."""


@dataclass(frozen=True)
class Api:
    """Where it answers, and how it describes itself."""

    url: str
    document: dict[str, Any]


@pytest.fixture
def api(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Api]:
    """A service with a job, that answers until the test is over."""
    service = Service(make_settings(database_url, redis_url, f"file://{tmp_path}/storage"))
    app = service.app()
    document = app.openapi()
    with serving(app) as base:
        with httpx.Client(base_url=base, headers=bearer(TOKEN)) as client:
            client.post("/api/v1/jobs", json={"name": "job", "run": "python -V"}).raise_for_status()
        yield Api(base, document)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def robot(api: Api, role: Role) -> str:
    wanted = {"name": "fuzz", "robot": True, "role": role}
    made = httpx.post(f"{api.url}/api/v1/tokens", json=wanted, headers=bearer(TOKEN), timeout=60)
    made.raise_for_status()
    token: str = made.json()["token"]
    return token


def failures_of(operation: schemathesis.schemas.APIOperation[Any, Any, Any], token: str) -> list[str]:
    """Return the defects of the answers to some requests for an operation with a token."""
    found: list[str] = []

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    def answered(case: schemathesis.Case) -> None:
        headers = {**bearer(token), "Accept": "application/json"}
        response = case.call(headers=headers, timeout=60)
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as failures:
            found.extend(str(one) for one in failures.exceptions)

    answered()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_answer_is_an_error_of_the_service_or_unknown_to_the_description(api: Api) -> None:
    tokens: dict[str, str] = {"nobody": "", **{role: robot(api, role) for role in (Role.VIEWER, Role.ADMIN)}}
    schema = schemathesis.openapi.from_dict(api.document)
    schema.config.update(base_url=api.url)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 50
    wrong: list[str] = []
    for operation in operations:
        for token in tokens.values():
            wrong += [f"{operation.label}: {one}" for one in failures_of(operation, token)]
    assert not wrong, "\n\n".join(wrong)
