"""The examples of the API's description: each request works when it is tried, and each answer is one that was given.

`HEADWAY_RECORD_EXAMPLES=1` writes what was sent and answered to `service/api/examples.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from jsonschema import Draft202012Validator

from service.api.http.document import examples
from service.domain.rental.offers import Offer
from service.settings import SecretSettings
from tests.integration.service.cast import Cast
from tests.integration.service.cloud import Cloud
from tests.integration.service.conftest import Harness, harness_of, join_body, make_settings

FILE = Path(__file__).parents[3] / "service" / "api" / "examples.json"
SPEC = {
    "name": "digits",
    "run": "python digits.py --epochs 2000",
    "elastic": {"min": 1, "max": 4},
    "batch": {"global": 256},
}
SWEEP = {
    "run": "python digits.py --lr $HEADWAY_PARAM_LR",
    "sweep": {
        "search": "random",
        "trials": 2,
        "parameters": {"lr": {"min": 0.0001, "max": 0.1, "log": True}},
        "metric": "loss",
    },
}
Step = tuple[str, str, str, Any]
BEFORE: list[Step] = [
    ("whoami", "GET", "/whoami", None),
    ("add_user", "POST", "/users", {"name": "ada@example.org"}),
    ("change_user", "PATCH", "/users/ada@example.org", {"role": "viewer"}),
    ("list_users", "GET", "/users", None),
    (
        "set_project",
        "PUT",
        "/projects/vision",
        {"description": "Images", "quota": {"slots": 8, "max_slots": 16}},
    ),
    ("set_member", "PUT", "/projects/vision/members/ada@example.org", {"role": "user"}),
    ("get_project", "GET", "/projects/vision", None),
    ("list_projects", "GET", "/projects", None),
    ("remove_member", "DELETE", "/projects/vision/members/ada@example.org", None),
    (
        "create_token",
        "POST",
        "/tokens",
        {"name": "nightly", "robot": True, "role": "user", "project": "vision", "expires_in_s": 2592000},
    ),
    ("list_tokens", "GET", "/tokens", None),
    (
        "create_webhook",
        "POST",
        "/projects/vision/webhooks",
        {"name": "ci", "url": "https://ci.example.com/hooks/headway", "topics": ["job.failed"]},
    ),
    ("list_webhooks", "GET", "/projects/vision/webhooks", None),
    (
        "change_webhook",
        "PATCH",
        "/projects/vision/webhooks/ci",
        {"topics": ["job.failed", "job.evicted"]},
    ),
    ("rotate_webhook_secret", "POST", "/projects/vision/webhooks/ci/rotate", None),
    ("test_webhook", "POST", "/projects/vision/webhooks/ci/test", None),
    ("list_deliveries", "GET", "/projects/vision/webhooks/ci/deliveries", None),
    ("create_join_token", "POST", "/join-tokens", {"name": "rack 4", "uses": 8, "expires_in_s": 3600}),
    ("list_join_tokens", "GET", "/join-tokens", None),
    ("join", "POST", "/agents", join_body("gpu-1", slots=1, kind="a100")),
]
AFTER: list[Step] = [
    ("submit_job", "POST", "/jobs", {**SPEC, "name": "digits-2"}),
    ("list_jobs", "GET", "/jobs", None),
    ("get_job", "GET", "/jobs/digits", None),
    ("plan_job", "POST", "/plans", {**SPEC, "name": "digits-3"}),
    ("explain_job", "GET", "/jobs/digits/explain", None),
    ("forecast_job", "GET", "/jobs/digits/forecast", None),
    ("list_events", "GET", "/jobs/digits/events", None),
    ("list_metrics", "GET", "/jobs/digits/metrics", None),
    ("read_logs", "GET", "/jobs/digits/logs", None),
    (
        "execute_command",
        "POST",
        "/jobs/digits/executions",
        {"id": "x7f3a", "argv": ["python"], "rank": 0, "timeout_s": 60, "stdin": True},
    ),
    (
        "send_execution_input",
        "POST",
        "/jobs/digits/executions/x7f3a/input",
        {"sequence": 1, "data": "cHJpbnQoMSkK", "eof": True},
    ),
    ("read_execution", "GET", "/jobs/digits/executions/x7f3a", None),
    ("cancel_execution", "DELETE", "/jobs/digits/executions/x7f3a", None),
    ("list_checkpoints", "GET", "/jobs/digits/checkpoints", None),
    ("list_output", "GET", "/jobs/digits/output", None),
    ("resize_job", "POST", "/jobs/digits/resize", {"slots": 1}),
    ("change_job", "PATCH", "/jobs/digits", {"priority": 80}),
    ("get_cluster", "GET", "/cluster", None),
    ("set_policy", "PUT", "/cluster", {"policy": "goodput", "parameters": {}}),
    ("list_rounds", "GET", "/rounds?limit=1", None),
    ("get_round", "GET", "/rounds/latest", None),
    ("list_nodes", "GET", "/nodes", None),
    ("list_hosts", "GET", "/hosts", None),
    ("cordon_node", "POST", "/nodes/alpha/cordon", None),
    ("uncordon_node", "POST", "/nodes/alpha/uncordon", None),
    ("quarantine_slot", "POST", "/nodes/alpha/slots/1/quarantine", {"why": "its fan is loud"}),
    ("release_slot", "POST", "/nodes/alpha/slots/1/release", None),
    ("drain_node", "POST", "/nodes/alpha/drain", None),
    ("list_machines", "GET", "/machines", None),
    (
        "lease_machines",
        "POST",
        "/jobs/digits/machines",
        {
            "groups": [
                {
                    "provider": "cloud",
                    "region": "us-east-1",
                    "instance_type": "g4dn.xlarge",
                    "market": "spot",
                    "machines": 2,
                }
            ],
            "max_usd_per_h": 0.35,
        },
    ),
    ("list_offers", "GET", "/offers", None),
    (
        "recommend",
        "POST",
        "/recommendations",
        {
            "spec": SPEC,
            "objective": "cost",
            "samples": 50000000,
            "speed": {"device_kind": "t4", "samples_per_s": 300},
        },
    ),
    (
        "simulate",
        "POST",
        "/simulations",
        {"changes": [{"change": "add_nodes", "device_kind": "a100", "nodes": 1, "slots": 8}]},
    ),
    ("list_simulations", "GET", "/simulations", None),
    ("set_budget", "PUT", "/budgets/month", {"kind": "period", "usd": 500, "period": "month", "hard": True}),
    ("get_budget", "GET", "/budgets/month", None),
    ("list_budgets", "GET", "/budgets", None),
    ("delete_budget", "DELETE", "/budgets/month", None),
    ("get_usage", "GET", "/usage", None),
    ("get_machine_bills", "GET", "/usage/machines", None),
    ("pause_job", "POST", "/jobs/digits/pause", None),
    ("resume_job", "POST", "/jobs/digits-2/resume", None),
    ("cancel_job", "POST", "/jobs/digits-2/cancel", {"force": False}),
    ("submit_sweep", "POST", "/sweeps", {**SPEC, "name": "search", **SWEEP}),
    ("list_sweeps", "GET", "/sweeps", None),
    ("get_sweep", "GET", "/sweeps/search", None),
    ("change_sweep", "PATCH", "/sweeps/search", {"priority": 80}),
    ("pause_sweep", "POST", "/sweeps/search/pause", None),
    ("resume_sweep", "POST", "/sweeps/search/resume", None),
    ("cancel_sweep", "POST", "/sweeps/search/cancel", {"force": False}),
    ("diagnose", "GET", "/diagnosis", None),
    ("get_sign_in", "GET", "/sign-in", None),
    ("create_sign_in_link", "POST", "/sign-in/links", None),
]
LONG = 3
"""So many items of a list are enough to see what they are."""
WITHHELD = {
    "token": "hw_...",
    "secret": "whsec_...",
    "node_token": "...",
    "url": "/auth/link?code=hw_...",
    "redis_url": "redis://headway-NODE:PASSWORD@redis:6379/0",
}
"""Replacements for values that look like secrets. The recorded ones are nobody's."""


def short(value: Any) -> Any:
    if isinstance(value, list):
        return [short(one) for one in value[:LONG]]
    if isinstance(value, dict):
        return {name: WITHHELD.get(name) or short(one) for name, one in value.items()}
    return value


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    """A service that rents machines of one type."""
    seen_at = datetime(2026, 11, 1, tzinfo=UTC)
    cloud = Cloud(lambda: seen_at)
    cloud.sells.append(
        Offer(
            provider="cloud",
            region="us-east-1",
            instance_type="g4dn.xlarge",
            device_kind="t4",
            devices=1,
            spot_usd_per_h=0.16,
            on_demand_usd_per_h=0.53,
            seen_at=seen_at,
        )
    )
    keys = SecretSettings(keys=(bytes(32),))
    settings = make_settings(database_url, redis_url, f"file://{tmp_path}/storage", secrets=keys)
    async with harness_of(settings, providers=[cloud]) as made:
        yield made


async def try_all(harness: Harness, steps: list[Step]) -> dict[str, dict[str, Any]]:
    recorded = {}
    for operation, method, path, body in steps:
        headers = {"Authorization": "Bearer join-token"} if operation == "join" else None
        answer: httpx.Response = await harness.client.request(
            method, f"/api/v1{path}", json=body, headers=headers
        )
        assert answer.is_success, f"{operation}: {answer.text}"
        recorded[operation] = {
            **({"request": body} if body is not None else {}),
            **({"response": short(answer.json())} if answer.content else {}),
        }
    return recorded


async def test_examples_work_and_are_what_the_description_says(harness: Harness) -> None:
    recorded = await try_all(harness, BEFORE)
    cast = Cast(harness)
    await cast.join(alpha=2, host={"executes": True, "executes_with_input": True})
    await cast.begin(1, "digits", run="python digits.py --epochs 2000", resources={"devices": ["cpu"]})
    recorded |= await try_all(harness, AFTER)
    if os.environ.get("HEADWAY_RECORD_EXAMPLES"):
        FILE.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
    document = (await harness.client.get("/openapi.json")).json()
    operations = {
        one["operationId"]: one for methods in document["paths"].values() for one in methods.values()
    }
    known = examples()
    assert set(known) == set(recorded)
    for operation, example in known.items():
        assert example.get("request") == recorded[operation].get("request"), operation
        if "response" in example:
            answers = operations[operation]["responses"]
            status = min(status for status in answers if status.startswith("2"))
            schema = answers[status]["content"]["application/json"]["schema"]
            Draft202012Validator({**schema, "components": document["components"]}).validate(
                example["response"]
            )
    bodies = {
        name
        for name, one in operations.items()
        if "application/json" in one.get("requestBody", {}).get("content", {})
    }
    of_agents = {name for name in bodies if "agents" in operations[name]["tags"]}
    assert bodies - of_agents - {"sign_in", "set_secret"} <= {
        name for name, one in known.items() if "request" in one
    }
