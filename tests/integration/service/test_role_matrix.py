"""Every route refuses every role that it should, and no other: the matrix is made from the API's description."""

from __future__ import annotations

import pytest

from service.api.http.access import Reach
from service.domain.shared.errors import Forbidden
from tests.integration.service.conftest import Harness
from tests.integration.service.roles import OF_AGENTS, OPEN, ask, operations_of, prepare

REFUSED = {401, 403, 404}


async def test_every_route_says_whom_it_is_for(harness: Harness) -> None:
    document = (await harness.client.get("/openapi.json")).json()
    silent = {one.id for one in operations_of(document, "n") if one.role is None}
    assert silent == OPEN | OF_AGENTS


async def test_nobody_and_nobody_any_more_gets_in(harness: Harness) -> None:
    cast, operations, agent = await prepare(harness)
    for operation in operations:
        if operation.role is None:
            continue
        for who in cast.unknown:
            answer = await ask(harness, operation, who, agent.joined.node_id)
            assert answer.status_code == 401, f"{who.name} asked {operation.id}: {answer.text}"
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_role_that_is_too_small_or_elsewhere_is_refused(harness: Harness) -> None:
    cast, operations, agent = await prepare(harness)
    hidden, tried = (await harness.job("red-job")).id, 0
    for operation in operations:
        if operation.role is None:
            continue
        for who in cast.known:
            if who.may(operation):
                continue
            answer = await ask(harness, operation, who, agent.joined.node_id)
            tried += 1
            assert answer.status_code in REFUSED - {401}, (
                f"{who.name} asked {operation.id}: {answer.status_code}"
            )
            if answer.status_code == 403:
                assert answer.json()["code"] == Forbidden.code
            if (
                who.project == "blue"
                and operation.about_red
                and operation.reach == Reach.PROJECT
                and who.is_enough_for(operation)
            ):
                assert answer.status_code == 404, f"{operation.id} tells {who.name} that it exists"
                assert hidden not in answer.text
    assert tried > 200
    assert (await harness.job("red-job")).state == "PENDING"
    assert (await harness.client.get("/api/v1/nodes")).json()["items"][0]["state"] == "READY"
    assert len((await harness.client.get("/api/v1/budgets")).json()["items"]) == 2


@pytest.mark.slow
async def test_a_role_that_is_enough_gets_in(harness: Harness) -> None:
    """A sufficient role reads each object, and no change is refused for its role, though perhaps for the state."""
    cast, operations, agent = await prepare(harness)
    last = ("delete_project", "delete_user", "cancel_job", "delete_budget")
    for operation in sorted(operations, key=lambda one: (one.id in last, one.method != "GET")):
        if operation.role in {None, "any"}:
            continue
        for who in cast.known:
            if not who.may(operation):
                continue
            answer = await ask(harness, operation, who, agent.joined.node_id)
            assert answer.status_code not in {401, 403}, f"{who.name} asked {operation.id}: {answer.text}"
            assert answer.status_code < 500, f"{operation.id}: {answer.text}"
