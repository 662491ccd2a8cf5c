"""The quickstart does what it says: its blocks are run in one shell, and what they print is what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.local.ports import free_port
from tools.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "quickstart.md"
PATIENCE_S = 120.0
ASKS = re.compile(r"^headway (ps|nodes|logs|events|explain)\b")
"""Lines that change nothing: they are asked again until the answer is the page's, as a reader would."""
END = "-- end of block --"


class Shell:
    """One bash for all blocks, as a reader has one terminal."""

    def __init__(self, home: Path, port: int) -> None:
        self._folder, self._port = home, port
        named = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**named, "HOME": str(home)},
        )

    def run(self, text: str) -> str:
        """Run the lines and return their output. Fail if a line does."""
        file = self._folder / "block.sh"
        file.write_text(text.replace("headway up ", f"headway up --port {self._port} "))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"set -e; . {file}; echo '{END}'\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.strip() == END:
                return "".join(printed)
            printed.append(line)
        pytest.fail(f"it ended:\n{text}\n{''.join(printed)}")

    def close(self) -> None:
        """End what the page has started, however far it came."""
        self._process.kill()
        self._process.communicate()
        subprocess.run(
            [ROOT / ".venv" / "bin" / "headway", "down"],
            env={**os.environ, "HOME": str(self._folder)},
            check=True,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path, free_port())
    yield one
    one.close()


def pattern_of(line: str) -> re.Pattern[str]:
    """Numbers may be others, columns wider, and `…` is anything."""
    pieces = re.split(r"(…|\d[\d.,]*|\s+)", line.strip())
    kinds = {"…": ".*"}
    made = [
        kinds.get(piece)
        or (r"\s+" if piece.isspace() else r"\d[\d.,]*" if piece[:1].isdigit() else re.escape(piece))
        for piece in pieces
        if piece
    ]
    return re.compile(r"\s*" + "".join(made).replace(r"\s+.*\s+", r"\s.*") + r"\s*")


def first_missing(shown: str, printed: str) -> str | None:
    """The first line of the page that does not follow in what was printed; other lines may stand between."""
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        pattern = pattern_of(line)
        if line.strip() not in {"", "…"} and not any(pattern.fullmatch(one) for one in lines):
            return line
    return None


def test_patterns_know_what_differs() -> None:
    printed = "digits  RUNNING   1/1-4  5%  2,571  7s  1 cpu slot on local-2"
    assert first_missing("digits  RUNNING  1/1-4 …  1 cpu slot on local-…", printed) is None
    assert first_missing("digits  PENDING  …", printed) == "digits  PENDING  …"


def answer(shell: Shell, block: Block, shown: str | None) -> None:
    """Run the block; until what it shows is there, ask its last line again, if that changes nothing."""
    printed = shell.run(block.text)
    last = block.text.splitlines()[-1]
    deadline = time.monotonic() + PATIENCE_S
    while shown is not None and (missing := first_missing(shown, printed)) is not None:
        told = f"{PAGE.name}:{block.line}: {missing!r} is not in what was printed:\n{printed}"
        assert ASKS.match(last), told
        assert time.monotonic() < deadline, told
        time.sleep(0.3)
        printed = shell.run(last)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quickstart_from_install_to_stop(shell: Shell) -> None:
    everything = list(blocks(PAGE))
    assert {block.language for block in everything} == {"sh", "text"}
    for block, after in zip(everything, [*everything[1:], None], strict=True):
        if block.language == "sh":
            answer(shell, block, after.text if after and after.language == "text" else None)
