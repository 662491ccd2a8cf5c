"""The verbs about webhooks."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.views.webhooks import (
    USUAL_TOPICS,
    DeliveryState,
    DeliveryView,
    WebhookFormat,
    WebhookSecret,
    WebhookView,
)
from tests.unit.headway.stub import NOW, StubService, ok, page, refusal

PATH = "/api/v1/projects/default/webhooks"
HOOK = WebhookView(
    project="default",
    name="ci",
    address="https://ci.example.com",
    format=WebhookFormat.STANDARD,
    topics=USUAL_TOPICS,
    enabled=True,
    message="",
    waiting=0,
    created_by="ada",
    created_at=NOW,
)
SECRET = "whsec_" + "a" * 44
SENT = DeliveryView(
    id="msg_1",
    topic="webhook.test",
    state=DeliveryState.DELIVERED,
    created_at=NOW,
    attempts=1,
    next_at=None,
    ended_at=NOW,
    status=200,
    answer="ok",
)


@pytest.fixture
def stub() -> StubService:
    return StubService()


def run(stub: StubService, *argv: str) -> Result:
    return CliRunner().invoke(app, ["webhook", *argv], obj=Cli(connect=stub.client, now=lambda: NOW))


def test_add_sends_only_what_is_given_and_prints_the_secret(stub: StubService) -> None:
    stub.on(f"POST {PATH}", ok(WebhookSecret(webhook=HOOK, secret=SECRET), 201))
    said = run(stub, "add", "ci", "https://ci.example.com/x", "--on", "job.failed")
    assert (said.exit_code, said.stdout.splitlines()[-1]) == (0, SECRET)
    assert stub.body(f"POST {PATH}") == {
        "name": "ci",
        "url": "https://ci.example.com/x",
        "topics": ["job.failed"],
    }


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["add", "ci", "ftp://x"], "http:// or https://"),
        (["add", "CI", "https://x"], "name"),
        (["add", "ci", "https://a:b@x"], "user and password"),
        (["set", "ci"], "--url"),
    ],
)
def test_wrong_requests_are_refused_before_they_are_sent(
    stub: StubService, argv: list[str], hint: str
) -> None:
    said = run(stub, *argv)
    assert (said.exit_code, hint in said.stderr, stub.requests) == (1, True, []), said.output


def test_webhooks_are_listed_or_the_way_to_add_one_is_shown(stub: StubService) -> None:
    stub.on(f"GET {PATH}", page(HOOK), page(HOOK), page())
    assert "https://ci.example.com" in run(stub, "ls").stdout
    assert json.loads(run(stub, "ls", "-o", "json").stdout)["items"][0]["name"] == "ci"
    assert "headway webhook add" in run(stub, "ls").stdout


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["set", "ci", "--url", "https://y", "--format", "slack"], {"url": "https://y", "format": "slack"}),
        (["disable", "ci"], {"enabled": False}),
        (["enable", "ci"], {"enabled": True}),
    ],
)
def test_changes_send_only_the_changed_fields(
    stub: StubService, argv: list[str], body: dict[str, object]
) -> None:
    stub.on(f"PATCH {PATH}/ci", ok(HOOK))
    said = run(stub, *argv)
    assert (said.exit_code, stub.body(f"PATCH {PATH}/ci")) == (0, body), said.output


def test_rotate_prints_the_new_secret_and_rm_deletes(stub: StubService) -> None:
    stub.on(f"POST {PATH}/ci/rotate", ok(WebhookSecret(webhook=HOOK, secret=SECRET)))
    assert run(stub, "rotate", "ci").stdout.splitlines()[-1] == SECRET
    stub.on(f"DELETE {PATH}/ci", ok({}), refusal(404, "not_found", "no webhook ci"))
    assert run(stub, "rm", "ci").exit_code == 0
    assert run(stub, "rm", "ci").exit_code == 1


def test_test_message_shows_the_answer_or_exits_with_one(stub: StubService) -> None:
    stub.on(f"POST {PATH}/ci/test", ok(SENT))
    said = run(stub, "test", "ci")
    assert (said.exit_code, "200 ok" in said.stdout) == (0, True), said.output
    refused = SENT.model_copy(update={"state": DeliveryState.WAITING, "status": 500, "answer": "down"})
    stub.on(f"POST {PATH}/ci/test", ok(refused))
    said = run(stub, "test", "ci")
    assert (said.exit_code, "500 down" in said.stderr) == (1, True), said.output


def test_deliveries_are_listed_with_their_answers(stub: StubService) -> None:
    stub.on(f"GET {PATH}/ci/deliveries", page(SENT), page())
    line = run(stub, "deliveries", "ci").stdout.splitlines()[1]
    assert [part in line for part in ("msg_1", "webhook.test", "delivered", "200 ok")] == [True] * 4, line
    assert "headway webhook test ci" in run(stub, "deliveries", "ci").stdout
