"""Numbers that no command takes end in a message, never in a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from typer.testing import CliRunner

from headway.cli.context import Cli
from headway.cli.main import app
from headway.cli.table import PANELS
from headway.client.client import Client
from tests.unit.headway.stub import NOW

WRONG = ("0", "-1", "nan", "inf", "1e400", "²", "9" * 12, "9" * 30)
ACT = {"up", "down", "agent", "doctor", "login", "simulate"}
"""Verbs that act on this machine before they ask the service."""


def commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


def lines(command: Any, file: str) -> Iterator[list[str]]:
    """Arguments of the command with each of its values in turn replaced by a wrong number."""
    takes = [one for one in command.params if not getattr(one, "is_flag", False) and one.name != "help"]
    usual = {one: file if one.metavar == "FILE" else "5" for one in takes if one.required}
    for wrong in WRONG:
        for replaced in takes:
            options: list[str] = []
            arguments: list[str] = []
            for one, value in {**usual, replaced: wrong}.items():
                if one.param_type_name == "option":
                    options.append(f"{one.opts[0]}={value}")
                else:
                    arguments.append(value)
            yield [*options, "--", *arguments]


def no_service() -> Client:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    return Client("http://nowhere", "token", patience_s=0, transport=httpx.MockTransport(refuse))


@pytest.mark.parametrize("verb", sorted({name for panel in PANELS.values() for name in panel} - ACT))
def test_wrong_numbers_end_in_a_message(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nrun: python digits.py\n")
    verbs: Any = typer.main.get_command(app)
    command = verbs.get_command(None, verb)
    group = hasattr(command, "list_commands")
    for names, each in commands(command, verb) if group else [((verb,), command)]:
        for line in lines(each, str(file)):
            cli = Cli(connect=no_service, now=lambda: NOW)
            result = CliRunner().invoke(app, [*names, *line], obj=cli)
            assert result.exception is None or isinstance(result.exception, SystemExit), (names, line)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "job", "--tail", "\u0663"], "decimal digits"),
        (["logs", "job", "--tail", "1_0"], "decimal digits"),
        (["logs", "job", "--tail", " 3"], "decimal digits"),
        (["logs", "job", "--rank", "00"], "write it without: 0"),
        (["priority", "job", "010"], "write it without: 10"),
        (["budget", "set", "day", "--usd", "\u0661.5"], "decimal digits"),
        (["budget", "set", "day", "--usd", "nan"], "decimal digits"),
        (["resize", "job", "010"], "neither a number"),
        (["release", "host", "01"], "write it without: 1"),
    ],
)
def test_a_number_in_another_notation_than_a_job_file_takes_is_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words, obj=Cli(connect=no_service, now=lambda: NOW))
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    "words",
    [["logs", "job", "--tail", "10"], ["priority", "job", "0"], ["resize", "job", "4"]],
)
def test_a_plain_number_is_taken(words: list[str]) -> None:
    result = CliRunner().invoke(app, words, obj=Cli(connect=no_service, now=lambda: NOW))
    assert result.exit_code == 1, "no service answers"
