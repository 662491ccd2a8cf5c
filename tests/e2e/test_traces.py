"""One trace of a job and metrics of every program, through the whole of Headway."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.local.stack import LocalStack
from tests.collector import Collector
from tests.e2e.conftest import PATIENCE_S, Cluster, PatientJob


@pytest.mark.slow
def test_a_job_is_followed_from_its_submit_to_its_resize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector().running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with LocalStack(tmp_path / "stack", agents=1, slots=2) as stack, stack.client() as client:
            job = PatientJob(Cluster(stack, client), "traced", tmp_path)
            job.start(1, most=2)
            chain = collector.wait_for(
                "submit", "round", "command", "start_ranks", "first_step", timeout_s=PATIENCE_S
            )
            parents = [one.parent_id for one in chain.values()]
            assert parents == ["", *(one.span_id for one in chain.values())][: len(parents)]
            assert [one.program for one in chain.values()] == [
                "headway-api",
                "headway-scheduler",
                "headway-api",
                "headway-agent",
                "headway-agent",
            ]
            job.resize(2)
            more = collector.wait_for("ready", "switch", timeout_s=PATIENCE_S)
            assert {one.trace_id for one in (*chain.values(), *more.values())} == {chain["submit"].trace_id}
            job.finish()
    by_id = {one.span_id: one for one in collector.spans}
    for span in collector.spans:
        assert span.parent_id in {"", *by_id}, f"{span.name} hangs on nothing"
        assert span.attributes["headway.job_id"] == job.id
    assert b"patient.py" not in collector.raw
