"""Spans: their names over process boundaries, and their way to a collector."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.exposing import Bind
from headway.tracing import SpanRef, trace_of

HEX = "0123456789abcdef"


@given(st.text(HEX, min_size=32, max_size=32), st.text(HEX, min_size=16, max_size=16))
def test_a_reference_is_read_as_it_was_written_unless_it_names_nothing(trace: str, span: str) -> None:
    names_something = set(trace) != {"0"} and set(span) != {"0"}
    ref = SpanRef(trace, span)
    assert SpanRef.parse(str(ref)) == (ref if names_something else None)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
    ],
)
def test_what_is_no_reference_or_not_recorded_by_its_sender_begins_nothing(text: str | None) -> None:
    assert SpanRef.parse(text) is None


@given(st.text(), st.lists(st.tuples(st.text(), st.integers()), unique=True, max_size=20))
def test_spans_of_a_job_are_told_apart_and_everybody_names_them_alike(
    job_id: str, about: list[tuple[str, int]]
) -> None:
    begin = trace_of(job_id)
    assert SpanRef.parse(str(begin)) == begin == trace_of(job_id)
    children = [begin.child(*one) for one in about]
    assert len({one.span_id for one in children}) == len(about)
    assert {one.trace_id for one in children} <= {begin.trace_id}


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9464", "127.0.0.1", 9464),
        (":9464", "127.0.0.1", 9464),
        ("0.0.0.0:9464", "0.0.0.0", 9464),
        ("[::1]:0", "::1", 0),
        ("node-3:65535", "node-3", 65535),
    ],
)
def test_where_to_listen(text: str, host: str, port: int) -> None:
    assert Bind.parse(text) == Bind(host, port)


@pytest.mark.parametrize("text", ["", "here", "1.2.3.4", "1.2.3.4:", "70000", "::1:9464", "host:-1"])
def test_what_is_no_place_to_listen(text: str) -> None:
    with pytest.raises(ValueError, match="not an address to listen at"):
        Bind.parse(text)
