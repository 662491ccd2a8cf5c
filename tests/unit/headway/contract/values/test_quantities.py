"""Durations and sizes as people write them, and text as programs print it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headway.contract.values.quantities import (
    Seconds,
    SizeBytes,
    duration,
    parse_duration_s,
    parse_size_bytes,
)
from headway.contract.values.text import GivenText, PrintedText


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        (" 5 m ", 300.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        ("0", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0s"),
        (0.0004, "1ms"),
        (0.05, "50ms"),
        (0.0996, "0.1s"),
        (0.27, "0.3s"),
        (2.96, "3s"),
        (42, "42s"),
        (59.9, "1m00s"),
        (3599, "59m59s"),
        (7500, "2h05m"),
        (90_061, "1d01h"),
        (math.inf, "-"),
    ],
)
def test_a_duration_as_text(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e9))
def test_a_duration_is_short(seconds: float) -> None:
    assert len(duration(seconds)) <= 9


@pytest.mark.parametrize(
    "text", ["", "s", "-5s", "5 minutes", "1h30m", "1e", "nan", "inf", ".5s", "5.s", "３０s", "٣"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it like 30s, 5m or 2h"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("1e9", 1_000_000_000),
        ("16GiB", 16 * 2**30),
        ("500 MB", 500_000_000),
        ("1.5KiB", 1536),
        ("2TiB", 2**41),
        ("7B", 7),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "16gib", "16 G", "1e", "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like 512MiB or 16GiB"):
        parse_size_bytes(text)


@given(st.integers(0, 2**53), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_whole_number_of_units_is_exact(count: int, unit: str) -> None:
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert parse_size_bytes(f"{count}{unit}") == count * factor


@pytest.mark.parametrize("value", [None, 5, 5.5, ["5s"]])
def test_other_types_are_left_to_pydantic(value: object) -> None:
    assert parse_duration_s(value) is value
    assert parse_size_bytes(value) is value


def test_in_a_model() -> None:
    assert TypeAdapter(Seconds).validate_python("5m") == 300.0
    assert TypeAdapter(SizeBytes).validate_python("1KiB") == 1024
    with pytest.raises(ValidationError):
        TypeAdapter(Seconds).validate_python(None)


def test_what_was_printed_is_kept_as_far_as_it_can_be() -> None:
    assert TypeAdapter(PrintedText).validate_python("a\0b\x1b[31m") == "a\ufffdb\x1b[31m"


def test_what_was_written_must_be_storable() -> None:
    assert TypeAdapter(GivenText).validate_python("ok\n") == "ok\n"
    with pytest.raises(ValidationError, match="NUL"):
        TypeAdapter(GivenText).validate_python("a\0")


@pytest.mark.parametrize("parse", [parse_size_bytes, parse_duration_s])
def test_a_number_that_no_float_holds_is_refused(parse: Callable[[object], object]) -> None:
    with pytest.raises(ValueError, match="too large"):
        parse("9" * 400)
