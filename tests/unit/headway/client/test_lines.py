"""Lines of a job's output, joined from chunks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headway.client.logs import lines
from headway.contract.views.jobs import LogChunk


def chunk(text: str, *, rank: int = 0) -> LogChunk:
    return LogChunk(
        cursor="1-1-0-0", at=datetime(2026, 3, 10, tzinfo=UTC), generation=1, rank=rank, offset=0, text=text
    )


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["\r 1%\r 2%\n", "end\n"], ["[0]  2%", "[0] end"]),
        (["\r 1%\r", " 2%\r", " 3%\r", "\nend\n"], ["[0]  3%", "[0] end"]),
        (["\r 1%", "\r 2", "%"], ["[0]  2%"]),
        (["Windows\r", "\n"], ["[0] Windows"]),
        (["\r" + "x" * 600_000] * 4, ["[0] " + "x" * 600_000]),
    ],
)
def test_redrawn_line_is_shown_once_in_its_last_state(pieces: list[str], shown: list[str]) -> None:
    assert list(lines(map(chunk, pieces), prefixed=True, redraws=False)) == shown


def test_line_keeps_its_redraws_for_a_terminal() -> None:
    assert list(lines([chunk("\r 1%\r 2%\n")], prefixed=False)) == ["\r 1%\r 2%"]
