"""Spans on their way to a collector, and programs that import nothing for it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from headway.tracing import Otlp, Span, collector, trace_of
from tests.collector import Collector


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


@pytest.mark.slow
def test_nothing_that_sends_traces_is_imported_where_nobody_collects() -> None:
    # The client of Redis imports metrics of OpenTelemetry where it is installed, whatever we do.
    sends = "('opentelemetry.sdk.trace', 'opentelemetry.exporter', 'opentelemetry.proto')"
    code = f"import sys, service.main, worker_agent.main; print([m for m in sys.modules if m.startswith({sends})])"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"


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
