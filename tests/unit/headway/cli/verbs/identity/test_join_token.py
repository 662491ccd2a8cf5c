"""The verbs about the tokens that agents join with."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.views.identity import JoinTokenView, NewJoinToken
from tests.unit.headway.stub import NOW, StubService, ok, page, refusal

TOKEN = "hwj_" + "a" * 43
RACK = JoinTokenView(
    id="k1",
    name="rack-7",
    uses_left=16,
    created_by="ops",
    created_at=NOW,
    expires_at=NOW + timedelta(hours=2),
)


@pytest.fixture
def stub() -> StubService:
    return StubService()


def run(stub: StubService, *argv: str) -> Result:
    cli = Cli(connect=stub.client, now=lambda: NOW)
    return CliRunner().invoke(app, ["join-token", *argv], obj=cli)


def test_a_join_token_is_printed_alone_with_what_to_do_beside_it(stub: StubService) -> None:
    stub.on("POST /api/v1/join-tokens", ok(NewJoinToken(**RACK.model_dump(), token=TOKEN), 201))
    said = run(stub, "create", "rack-7", "--uses", "16", "--expires", "2h")
    assert (said.exit_code, said.stdout) == (0, f"{TOKEN}\n"), said.output
    assert "works 16 times, for 2h00m" in said.stderr
    assert "headway agent --url" in said.stderr
    assert stub.body("POST /api/v1/join-tokens") == {"name": "rack-7", "uses": 16, "expires_in_s": 7200.0}
    assert json.loads(run(stub, "create", "-o", "json").stdout)["token"] == TOKEN


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--expires", "soon"], "like 1h or 7d"),
        (["--expires", "900d"], "--expires:"),
        (["--uses", "10001"], "uses"),
    ],
)
def test_what_cannot_be_is_said(stub: StubService, argv: list[str], hint: str) -> None:
    said = run(stub, "create", *argv)
    assert (said.exit_code, hint in said.stderr) == (1, True), said.output


def test_join_tokens_are_listed(stub: StubService) -> None:
    used, late = (
        RACK.model_copy(update={"id": "k2", "uses_left": 0}),
        RACK.model_copy(update={"expires_at": NOW}),
    )
    stub.on("GET /api/v1/join-tokens", page(RACK, used, late), page())
    lines = run(stub, "ls").stdout.splitlines()
    assert ["for 2h00m" in lines[1], "used up" in lines[2], "expired" in lines[3]] == [True] * 3, lines
    assert "headway join-token create" in run(stub, "ls").stdout


def test_a_join_token_is_revoked(stub: StubService) -> None:
    stub.on("DELETE /api/v1/join-tokens/k1", ok(RACK), refusal(404, "not_found", "there is no join token k1"))
    assert run(stub, "revoke", "k1").stdout == "k1 is revoked.\n"
    gone = run(stub, "revoke", "k1")
    assert (gone.exit_code, "there is no join token k1" in gone.stderr) == (1, True)
