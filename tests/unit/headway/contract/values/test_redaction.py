from __future__ import annotations

import secrets
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.redaction import (
    HIDDEN,
    command_without_credentials,
    without_credentials,
    without_tokens,
)
from headway.contract.views.identity import TOKEN_PREFIX


@pytest.mark.parametrize("around", ["{}", "Bearer {}", "token={}&x=1", '"{}"', "({})", "a/{}/b"])
def test_every_token_is_hidden(around: str) -> None:
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    assert without_tokens(around.format(token)) == around.format(HIDDEN)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgresql://u:p%40ss@db:5432/x", f"postgresql://u:{HIDDEN}@db:5432/x"),
        ("redis://:secret@r:6379/0 is away", f"redis://:{HIDDEN}@r:6379/0 is away"),
        ("http://host:8123/a@b", "http://host:8123/a@b"),
        ("see https://host/path", "see https://host/path"),
    ],
)
def test_passwords_of_urls_are_hidden(text: str, told: str) -> None:
    assert without_credentials(text) == told


@given(st.text())
def test_other_text_is_left_as_it_is(text: str) -> None:
    if "hw" not in text and "@" not in text:
        assert without_credentials(text) == text


@pytest.mark.parametrize(
    "argv",
    [
        ["mysql", "--password", "s3cr et"],
        ["mysql", "--password=s3cr et"],
        ["env", "WANDB_API_KEY=s3cr et", "python"],
        ["sh", "-c", "export MY_TOKEN=s3cr; curl --token 's3cr et' x"],
        ["git", "clone", "https://me:s3cr@host/x"],
    ],
)
def test_command_shows_no_value_that_is_named_like_a_credential(argv: list[str]) -> None:
    shown = command_without_credentials(argv)
    assert "s3cr" not in shown
    assert shown.startswith(argv[0])
    assert HIDDEN in shown


def test_command_without_credentials_stays_as_it_is() -> None:
    argv = ["sh", "-c", "echo $COLOUR-$RANK; ls tokens"]
    assert command_without_credentials(argv) == shlex.join(argv)


@pytest.mark.parametrize(
    "argument",
    ["pa ss/wörd", "url?key=pa%20ss%2Fw%C3%B6rd", "cGEgc3Mvd8O2cmQ=", "x" * 995 + "pa ss/wörd"],
    ids=["plain", "url", "base64", "at the cut of a long argument"],
)
def test_command_shows_no_form_of_a_secret_value(argument: str) -> None:
    shown = command_without_credentials(["curl", argument], ["pa ss/wörd"])
    assert shown.startswith("curl ")
    assert "pa ss" not in shown
    assert "pa%20" not in shown
    assert "cGEg" not in shown


def test_command_keeps_values_that_are_too_short_to_be_told_from_text() -> None:
    assert command_without_credentials(["ls", "abc"], ["abc"]) == "ls abc"
