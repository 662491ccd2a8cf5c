"""Lines that a progress bar redraws."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.redrawn import ReversedStates, last_state, last_states, shown_lines


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("plain", "plain"),
        ("line of Windows\r", "line of Windows"),
        ("\r 1%\r 2%", " 2%"),
        (" 1%\r 2%\r", " 2%"),
        ("\r", ""),
        ("bar\r   \rerror", "error"),
    ],
)
def test_line_is_shown_in_its_last_state(line: str, state: str) -> None:
    assert last_state(line) == state


def test_a_megabyte_of_carriage_returns_is_nothing() -> None:
    returns = "\r" * (1 << 20)
    assert last_states(f"a\n{returns}b\n{returns}") == "a\nb\n"
    assert shown_lines(f"a\x1b[A{returns}\n") == ["a", ""]
    assert ReversedStates().before(0, f"a\n{returns}b{returns}") == "a\nb\r"


@given(st.text(alphabet="ab\r\n", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_pieces_read_backwards_give_the_states_of_the_whole(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(one for one in cuts if one <= len(text))})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(edges)]
    states = ReversedStates()
    kept = [states.before("rank 0", piece) for piece in reversed(pieces)]
    assert last_states("".join(reversed(kept))) == last_states(text)
    assert "\r" not in "".join(reversed(kept)).rstrip("\r")
