"""The verbs about tokens, people and projects."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from headway.cli.context import Cli
from headway.cli.main import app
from headway.contract.views.identity import (
    NewToken,
    ProjectQuota,
    ProjectView,
    Role,
    TokenView,
    UserView,
    WhoAmI,
)
from tests.unit.headway.stub import NOW, StubService, ok, page, refusal

TOKEN = "hw_" + "a" * 43
ME = WhoAmI(
    name="alice",
    user_id="u1",
    token_id="t1",
    roles={"*": Role.VIEWER, "vision": Role.ADMIN},
    expires_at=NOW + timedelta(days=3),
)
ALICE = UserView(
    id="u1", name="alice", roles={"vision": Role.ADMIN}, created_at=NOW, last_seen_at=None, disabled_at=None
)
VISION = ProjectView(
    name="vision",
    description="eyes",
    quota=ProjectQuota(slots=4),
    members={"alice": Role.ADMIN},
    slots_held=6,
    slots_borrowed=2,
    usd_this_month=12.5,
    created_at=NOW,
    slots_lent=0,
    used_slot_h=0.0,
    share_used=0.0,
    share_due=0.0,
)
ROBOT = TokenView(
    id="t2",
    name="ci",
    user=None,
    role=Role.USER,
    project="vision",
    created_by="alice",
    created_at=NOW,
    expires_at=None,
    last_used_at=NOW - timedelta(minutes=5),
    made_with="t1",
)


@pytest.fixture
def stub() -> StubService:
    return StubService()


def run(stub: StubService, *argv: str, stdin: str | None = None, **env: str) -> Result:
    cli = Cli(connect=stub.client, connect_to=lambda url, token: stub.client(), now=lambda: NOW)
    return CliRunner().invoke(app, list(argv), obj=cli, input=stdin, env=env)


def test_whoami_says_who_where_and_until_when(stub: StubService) -> None:
    stub.on("GET /api/v1/whoami", ok(ME))
    said = run(stub, "whoami")
    assert "alice, viewer everywhere, admin in vision; the token works for 3d00h." in said.stdout
    assert json.loads(run(stub, "whoami", "-o", "json").stdout) == json.loads(ME.model_dump_json())


def test_whoami_of_nobody_says_what_to_do(stub: StubService) -> None:
    stub.on("GET /api/v1/whoami", ok(ME.model_copy(update={"roles": {}, "expires_at": None})))
    said = run(stub, "whoami").stdout
    assert "headway project add-member" in said
    assert "until it is revoked" in said


def test_login_keeps_the_token_for_this_user_alone(stub: StubService, tmp_path: Path) -> None:
    stub.on("GET /api/v1/whoami", ok(ME))
    said = run(stub, "login", "http://stub/", "--token", stdin=f"{TOKEN}\n", HEADWAY_HOME=str(tmp_path))
    assert said.exit_code == 0, said.output
    file = tmp_path / "client.json"
    assert json.loads(file.read_text()) == {"url": "http://stub", "token": TOKEN}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert TOKEN not in said.output
    assert "as alice" in said.stdout


def test_login_says_when_the_environment_goes_first(stub: StubService, tmp_path: Path) -> None:
    stub.on("GET /api/v1/whoami", ok(ME))
    said = run(stub, "login", "http://stub", stdin=TOKEN, HEADWAY_HOME=str(tmp_path), HEADWAY_TOKEN="other")
    assert "HEADWAY_TOKEN is set" in said.stderr


@pytest.mark.parametrize("given", ["", "  \n"])
def test_login_with_nothing_keeps_nothing(stub: StubService, tmp_path: Path, given: str) -> None:
    said = run(stub, "login", "http://stub", stdin=given, HEADWAY_HOME=str(tmp_path))
    assert (said.exit_code, "No token was given" in said.stderr) == (1, True)
    assert not (tmp_path / "client.json").exists()


def test_login_with_a_wrong_token_keeps_nothing(stub: StubService, tmp_path: Path) -> None:
    stub.on("GET /api/v1/whoami", refusal(401, "wrong_token", "the API token is wrong"))
    said = run(stub, "login", "http://stub", stdin=TOKEN, HEADWAY_HOME=str(tmp_path))
    assert (said.exit_code, "the API token is wrong" in said.stderr) == (1, True)
    assert not (tmp_path / "client.json").exists()


def test_login_without_a_url_needs_one_that_is_known(stub: StubService, tmp_path: Path) -> None:
    said = run(stub, "login", stdin=TOKEN, HEADWAY_HOME=str(tmp_path))
    assert (said.exit_code, "No service is configured" in said.stderr) == (1, True)


def test_a_token_is_printed_alone_so_that_it_can_be_sent_on(stub: StubService) -> None:
    made = NewToken(**{**ROBOT.model_dump(), "token": TOKEN, "expires_at": NOW + timedelta(hours=12)})
    stub.on("POST /api/v1/tokens", ok(made, 201))
    argv = ["token", "create", "ci", "--robot", "--role", "user", "-p", "vision", "--expires", "12h"]
    said = run(stub, *argv)
    assert said.stdout == f"{TOKEN}\n"
    assert "works for 12h00m" in said.stderr
    assert stub.body("POST /api/v1/tokens") == {
        "name": "ci",
        "role": "user",
        "project": "vision",
        "robot": True,
        "expires_in_s": 43200.0,
    }
    assert json.loads(run(stub, *argv, "-o", "json").stdout)["token"] == TOKEN
    keys = {request.headers["Idempotency-Key"] for request in stub.sent("POST /api/v1/tokens")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--expires", "soon"], "--expires soon: not a duration"),
        (["--expires", "3000d"], "--expires:"),
        (["--project", "Not A Name"], "project"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_asked_for(
    stub: StubService, argv: list[str], sentence: str
) -> None:
    said = run(stub, "token", "create", "ci", *argv)
    assert (said.exit_code, sentence in said.stderr) == (1, True), said.output
    assert stub.requests == []


def test_tokens_are_listed_and_revoked(stub: StubService) -> None:
    stub.on("GET /api/v1/tokens", page(ROBOT))
    stub.on("DELETE /api/v1/tokens/t2", ok({}, 204))
    listed = run(stub, "token", "ls").stdout
    assert all(word in listed for word in ("t2", "t1", "ci", "robot", "user", "vision", "5m00s ago"))
    assert "t2 is revoked" in run(stub, "token", "revoke", "t2").stdout
    stub.on("GET /api/v1/tokens", page())
    assert "headway token create NAME" in run(stub, "token", "ls").stdout


def test_people_are_added_and_told_what_is_next(stub: StubService) -> None:
    stub.on("GET /api/v1/users", page())
    stub.on("POST /api/v1/users", ok(ALICE, 201))
    said = run(stub, "user", "add", "alice")
    assert "headway project add-member PROJECT alice" in said.stderr
    assert stub.body("POST /api/v1/users") == {"name": "alice", "role": None}


def test_adding_somebody_with_another_role_changes_it(stub: StubService) -> None:
    stub.on("GET /api/v1/users", page(ALICE))
    stub.on("PATCH /api/v1/users/alice", ok(ALICE))
    assert run(stub, "user", "add", "alice", "--role", "admin").exit_code == 0
    assert stub.body("PATCH /api/v1/users/alice") == {"role": "admin"}


@pytest.mark.parametrize(
    ("argv", "route", "body"),
    [
        (["user", "disable", "alice"], "PATCH /api/v1/users/alice", {"disabled": True}),
        (["user", "enable", "alice"], "PATCH /api/v1/users/alice", {"disabled": False}),
        (["user", "rm", "alice"], "DELETE /api/v1/users/alice", None),
        (["project", "rm", "vision"], "DELETE /api/v1/projects/vision", None),
        (["project", "rm-member", "vision", "al"], "DELETE /api/v1/projects/vision/members/al", None),
        (
            ["project", "add-member", "vision", "al", "--role", "viewer"],
            "PUT /api/v1/projects/vision/members/al",
            {"role": "viewer"},
        ),
    ],
)
def test_verbs_ask_for_what_they_say(
    stub: StubService, argv: list[str], route: str, body: dict[str, Any] | None
) -> None:
    stub.on(route, ok(VISION if "projects" in route else ALICE))
    said = run(stub, *argv)
    assert said.exit_code == 0, said.output
    sent = stub.sent(route)[0].content
    assert (json.loads(sent) if sent else None) == body


def test_the_last_admin_is_told_what_to_do(stub: StubService) -> None:
    stub.on("DELETE /api/v1/users/alice", refusal(409, "last_admin", "alice is the last admin; make ..."))
    said = run(stub, "user", "rm", "alice")
    assert (said.exit_code, "alice is the last admin" in said.stderr) == (1, True)


def test_a_name_with_blanks_is_none(stub: StubService) -> None:
    said = run(stub, "user", "add", "a b")
    assert (said.exit_code, "without spaces" in said.stderr) == (1, True)


def test_a_project_is_made_only_if_there_is_none(stub: StubService) -> None:
    stub.on("PUT /api/v1/projects/vision", ok(VISION, 201))
    said = run(stub, "project", "create", "vision", "--slots", "4", "--description", "eyes")
    assert all(word in said.stdout for word in ("vision", "$12.50", "alice", "admin"))
    (sent,) = stub.sent("PUT /api/v1/projects/vision")
    assert sent.headers["If-None-Match"] == "*"
    assert json.loads(sent.content)["quota"]["slots"] == 4
    wrong = run(stub, "project", "create", "vision", "--weight", "0")
    assert (wrong.exit_code, "--weight" in wrong.stderr) == (1, True)


def test_a_project_is_changed_in_what_is_given(stub: StubService) -> None:
    stub.on(
        "GET /api/v1/projects/vision",
        lambda: httpx.Response(200, content=VISION.model_dump_json(), headers={"ETag": '"v1"'}),
    )
    stub.on("PUT /api/v1/projects/vision", ok(VISION))
    assert run(stub, "project", "set", "vision", "--max-slots", "8", "--no", "slots").exit_code == 0
    (sent,) = stub.sent("PUT /api/v1/projects/vision")
    assert sent.headers["If-Match"] == '"v1"'
    assert json.loads(sent.content) == {
        "description": "eyes",
        "quota": {"slots": None, "max_slots": 8, "usd_per_month": None, "weight": 1.0},
    }
    for argv, sentence in [([], "Nothing to set"), (["--no", "hope"], "no such limit")]:
        said = run(stub, "project", "set", "vision", *argv)
        assert (said.exit_code, sentence in said.stderr) == (1, True)


def test_projects_are_listed_with_what_they_hold(stub: StubService) -> None:
    stub.on("GET /api/v1/projects", page(VISION))
    stub.on("GET /api/v1/projects/vision", ok(VISION.model_copy(update={"members": {}})))
    listed = run(stub, "project", "ls").stdout
    assert "6" in listed
    assert "eyes" in listed
    assert "headway project add-member vision NAME" in run(stub, "project", "show", "vision").stdout
    stub.on("GET /api/v1/projects", page())
    assert "You are in no project" in run(stub, "project", "ls").stdout
