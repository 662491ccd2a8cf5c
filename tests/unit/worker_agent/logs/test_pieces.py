from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from worker_agent.logs.pieces import CHUNK_BYTES, TAIL_LINES, cut, from_character, tail


@given(st.text(max_size=200), st.booleans())
def test_a_cut_is_at_a_line_end_or_at_the_very_end(text: str, final: bool) -> None:
    data = text.encode()
    end = cut(data, idle=False, final=final)
    assert 0 <= end <= len(data)
    assert end in (0, len(data)) or data[end - 1 : end] in (b"\n", b"\r")
    if final:
        assert end == len(data)


@given(st.text(alphabet="aü€😀", min_size=1, max_size=20))
def test_a_full_chunk_without_lines_is_cut_between_characters(text: str) -> None:
    chunk = (text.encode() * CHUNK_BYTES)[:CHUNK_BYTES]
    end = cut(chunk, idle=False, final=False)
    assert CHUNK_BYTES - 8 <= end <= CHUNK_BYTES
    chunk[:end].decode()


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_text("only\n")
    assert tail(log) == ["only"]
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(5000)))
    lines = tail(log)
    assert len(lines) == TAIL_LINES
    assert lines[-1].startswith("line 4999")
    log.write_text("x" * 100_000)
    assert len(tail(log)[0]) <= 16384


@given(st.text(alphabet="aü€😀", max_size=20), st.integers(0, 3))
def test_idle_output_is_cut_behind_its_last_whole_character(text: str, missing: int) -> None:
    data = text.encode()
    data = data[: len(data) - missing]
    end = cut(data, idle=True, final=False)
    assert data[:end].decode() == data.decode(errors="ignore")


@given(st.text(alphabet="aü€😀", max_size=20), st.integers(0, 3))
def test_output_from_any_byte_begins_with_its_first_whole_character(text: str, missing: int) -> None:
    data = text.encode()[missing:]
    assert data[from_character(data) :].decode() == data.decode(errors="ignore")


def test_bytes_that_are_no_text_are_not_held_back() -> None:
    assert cut(b"raw \x80\xfe", idle=True, final=False) == 6


def test_tail_of_a_progress_bar_is_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "log"
    bar = "".join(f"\rtrain: {step} of 30000 {'#' * 40}" for step in range(30_000))
    log.write_text(f"begin\r\nhalf way\n{bar}\nlast line of the script\n", encoding="utf-8")
    *_, state, last = tail(log)
    assert state == f"train: 29999 of 30000 {'#' * 40}"
    assert last == "last line of the script"
    assert sum(map(len, tail(log))) < 200
    log.write_bytes(b"error: no disk\n" + b"\r" * ((1 << 20) - 100) + b"\n")
    assert tail(log) == ["error: no disk", ""]


def test_tail_of_two_progress_bars_is_their_last_states(tmp_path: Path) -> None:
    log = tmp_path / "log"
    bars = "".join(f"\router {step}\n\rinner {step}\x1b[A" for step in range(1000))
    log.write_text(f"begin\n{bars}\n\nValueError: no\n", encoding="utf-8")
    assert tail(log) == ["begin", "outer 999", "inner 999", "ValueError: no"]


def test_tail_of_very_long_characters_begins_with_a_whole_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for first in ("", "1", "12"):
        log.write_text(first + "训" * 40_000, encoding="utf-8")
        (line,) = tail(log)
        assert set(line) == {"训"}
