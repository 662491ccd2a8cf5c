"""A scheduler that answers where it is told to."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.exposing import Bind, listen
from service.settings import SettingsError
from service.telemetry import telemetry


def test_a_scheduler_answers_where_it_is_told_to() -> None:
    made = telemetry(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    listener = listen(Bind("127.0.0.1", 0), made.registry)
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=30) as answer:
        names = {one.name for one in text_string_to_metric_families(answer.read().decode())}
    assert {"headway_solver_status", "headway_scheduling_cycle_duration_seconds"} <= names
    taken = Bind("127.0.0.1", listener.port)
    with pytest.raises(SettingsError, match="HEADWAY_METRICS_LISTEN: Cannot listen"), made.exposed(taken):
        pytest.fail("two cannot listen at one place")
    listener.close()
    with made.exposed(Bind("127.0.0.1", 0)), made.exposed(None):
        """Anywhere is a place, and so is nowhere."""
