"""Commands beside ranks as the API takes and refuses them, and what agents may report about them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headway.contract.agents import ExecCommand
from tests.integration.service.cast import Cast
from tests.integration.service.conftest import Harness

REQUEST = {"id": "x1", "argv": ["true"]}
PATH = "/api/v1/jobs/job/executions"


def report(sequence: int, job_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "generation": 1,
        "claim": "0123456789abcdef",
        "sequence": sequence,
        **fields,
    }


async def tell(cast: Cast, node: str, body: dict[str, Any]) -> httpx.Response:
    joined = cast.agents[node].joined
    headers = {"Authorization": f"Bearer {joined.node_token}"}
    path = f"/api/v1/agents/{joined.node_id}/executions/x1"
    return await cast.harness.client.post(path, json=body, headers=headers)


async def test_repeated_request_is_one_command_with_the_generation_of_its_rank(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1, host={"executes": True})
    await cast.begin(1)
    for _ in range(2):
        answer = await harness.client.post(PATH, json=REQUEST)
        assert answer.status_code == 201, answer.text
    await cast.deliver()
    (command,) = [one for one in cast.told["alpha"] if isinstance(one, ExecCommand)]
    assert (command.generation, command.rank, command.argv) == (1, 0, ["true"])


async def test_agent_without_the_ability_is_too_old(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1)
    await cast.begin(1)
    answer = await harness.client.post(PATH, json=REQUEST)
    assert (answer.status_code, answer.json()["code"]) == (409, "agent_too_old")


async def test_input_and_terminals_need_an_agent_that_knows_them(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1, host={"executes": True})
    await cast.begin(1)
    for wish in ({"stdin": True}, {"terminal": {"rows": 24, "columns": 80}}):
        answer = await harness.client.post(PATH, json={**REQUEST, **wish})
        assert (answer.status_code, answer.json()["code"]) == (409, "agent_too_old")
    assert (await harness.client.post(PATH, json=REQUEST)).status_code == 201
    refused = await harness.client.post(f"{PATH}/x1/input", json={"sequence": 1, "data": "YQ=="})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_field")


async def test_only_the_node_of_the_rank_may_report(harness: Harness) -> None:
    cast = Cast(harness)
    await cast.join(alpha=1, beta=1, host={"executes": True})
    await cast.begin(1)
    home = cast.homes[1, 0][0]
    (other,) = {"alpha", "beta"} - {home}
    job_id = (await harness.job()).id
    assert (await harness.client.post(PATH, json=REQUEST)).status_code == 201
    assert (await tell(cast, other, report(0, job_id))).status_code == 404
    assert (await tell(cast, home, report(0, job_id))).json() == {"cancelled": False, "hold": False}
    parts = [{"stream": "stdout", "data": "aGk="}]
    assert (await tell(cast, home, report(1, job_id, parts=parts))).json() == {
        "cancelled": False,
        "hold": False,
    }
    (event,) = (await harness.client.get(f"{PATH}/x1")).json()["items"]
    assert (event["cursor"], event["parts"]) == ("1", parts)
    assert (await harness.client.delete(f"{PATH}/x1")).status_code == 204
    assert (await tell(cast, home, report(2, job_id))).json() == {"cancelled": True, "hold": False}


@pytest.mark.parametrize(
    "wrong",
    [
        {"terminal": {"rows": 0}},
        {"terminal": {"term": "a b"}},
        {"argv": []},
        {"argv": [" "]},
        {"argv": ["a\0b"]},
        {"argv": ["a" * 8_193]},
        {"id": "1"},
        {"rank": -1},
    ],
    ids=["no rows", "term", "none", "blank", "nul", "long", "id", "rank"],
)
async def test_wrong_request_is_refused(harness: Harness, wrong: dict[str, Any]) -> None:
    answer = await harness.client.post(PATH, json={**REQUEST, **wrong})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")
