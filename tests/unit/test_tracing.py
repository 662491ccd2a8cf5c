"""Spans: their names over process boundaries, and their way to a collector."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.exposing import Bind
from headway.tracing import Otlp, Span, SpanRef, collector, trace_of
from tests.collector import Collector

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


def test_a_span_comes_to_a_collector_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)
    parent = trace_of("j1")
    with Collector().running() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        otlp = Otlp("headway-test", "this-one", "0")
        otlp.send(
            Span(
                name="round",
                ref=parent.child("round", 1),
                parent=parent,
                began_at=at,
                ended_at=at - timedelta(seconds=1),  # of another clock
                attributes={"headway.job_id": "j1", "headway.generation": 1},
                failed=True,
            )
        )
        otlp.close()
    (got,) = receiver.spans
    assert (got.program, got.name, got.failed) == ("headway-test", "round", True)
    assert (got.trace_id, got.parent_id) == (parent.trace_id, parent.span_id)
    assert got.span_id == parent.child("round", 1).span_id
    assert got.began_ns == got.ended_ns == int(at.timestamp() * 1e6) * 1000
    assert got.attributes == {"headway.job_id": "j1", "headway.generation": 1}


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_nothing_is_wanted_without_a_collector(env: dict[str, str], wanted: bool) -> None:
    missing: list[object] = []
    sends = collector(env, "headway-test", "this-one", "0", missing=lambda **said: missing.append(said))
    assert ((sends is not None), missing) == (wanted, [])
    if sends is not None:
        sends.close()


def test_nothing_that_sends_traces_is_imported_where_nobody_collects() -> None:
    # The client of Redis imports metrics of OpenTelemetry where it is installed, whatever we do.
    sends = "('opentelemetry.sdk.trace', 'opentelemetry.exporter', 'opentelemetry.proto')"
    code = f"import sys, service.main, worker_agent.main; print([m for m in sys.modules if m.startswith({sends})])"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"


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
    with pytest.raises(ValueError, match="no place to listen"):
        Bind.parse(text)
