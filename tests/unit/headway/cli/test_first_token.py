"""The first admin's token: shown once to a person at a terminal, and never where it would be kept."""

from __future__ import annotations

import os
import pty
from contextlib import suppress
from io import StringIO
from pathlib import Path

from rich.console import Console

from headway.cli.context import Cli
from headway.cli.verbs.cluster.local import _print_token
from headway.local.stack import LocalStack

TOKEN = "hw_" + "a" * 43


def stack_with_token(folder: Path) -> LocalStack:
    stack = LocalStack(folder, port=1)
    stack.token_file.parent.mkdir(parents=True, exist_ok=True)
    stack.token_file.write_text(TOKEN)
    return stack


def everything_on(terminal: int) -> str:
    shown = b""
    with suppress(OSError):  # EIO is how a terminal that was closed on the other side ends
        while piece := os.read(terminal, 65_536):
            shown += piece
    return shown.decode()


def test_a_terminal_shows_it(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    try:
        with os.fdopen(writer, "w") as terminal:
            _print_token(Cli(out=Console(file=terminal, width=200)), stack_with_token(tmp_path))
        shown = everything_on(reader)
    finally:
        os.close(reader)
    assert shown.count(TOKEN) == 1
    assert "shown this once" in shown


def test_what_is_piped_does_not(tmp_path: Path) -> None:
    said = StringIO()
    _print_token(Cli(out=Console(file=said, width=200)), stack_with_token(tmp_path))
    assert TOKEN not in said.getvalue()
    assert "admin-token" in said.getvalue()
