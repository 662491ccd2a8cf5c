"""Lines of a job's output, joined from chunks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headway.client.logs import lines
from headway.contract.views.jobs import LogChunk


def chunk(text: str, *, rank: int = 0, present: int | None = None) -> LogChunk:
    at = datetime(2026, 3, 10, tzinfo=UTC)
    return LogChunk(
        cursor="1-1-0-0", at=at, generation=1, rank=rank, present_rank=present, offset=0, text=text
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


def test_line_has_the_rank_that_its_process_has_by_then() -> None:
    """Pieces are joined by the start of their process: rank 1 has ended, and rank 2 is rank 1 now."""
    chunks = [
        chunk("a\nb", rank=1),
        chunk("c\nd", rank=2, present=2),
        chunk("e\nf", rank=2, present=1),
    ]
    assert list(lines(chunks, prefixed=True)) == ["[1] a", "[2] c", "[1] de", "[1] b", "[1] f"]
